// Which ranks share a machine, cores and a device. Launchers do not report this reliably: whether ranks are bound to
// cores of their own, and whether each sees one GPU or all of them, depends on their options. So the ranks exchange it.
#pragma once

#include <array>
#include <bitset>
#include <span>
#include <string>

#include "weft/comm/world.h"
#include "weft/device/device.h"

namespace weft {

using Cores = std::bitset<4096>;
Cores usable_cores();  // numbers of the cores this process may run on (as set by taskset, mpirun, srun or a container)
int usable_core_count();  // at least 1

// Where a rank runs.
struct RankPlacement {
  std::array<char, 64> machine{};  // unique to the machine and its boot
  std::array<char, 64> device{};   // unique within the machine
  Cores cores;
};
RankPlacement placement_of_this_process(const Device& device);

struct Neighbours {
  int on_machine = 1;  // ranks, including this one
  int on_device = 1;
  int cores = 1;  // this rank's share of the cores it may run on
};
Neighbours count_neighbours(std::span<const RankPlacement> placements, int rank);
// Collective over all ranks.
Neighbours find_neighbours(World& world, const Device& device);

}  // namespace weft
