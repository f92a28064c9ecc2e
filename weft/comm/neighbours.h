// With whom a rank shares its machine, its cores and its device. Launchers do not say it well: whether ranks are bound to
// cores of their own, and whether each sees one GPU or all of them, depends on their options. So the ranks tell each other.
#pragma once

#include <array>
#include <bitset>
#include <span>
#include <string>

#include "weft/comm/world.h"
#include "weft/device/device.h"

namespace weft {

using Cores = std::bitset<4096>;
Cores usable_cores();     // by their numbers: those that this process may run on (taskset, mpirun, srun, a container)
int usable_core_count();  // at least 1

// What a rank says of itself.
struct RankCard {
  std::array<char, 64> machine{};  // different for every machine that runs now
  std::array<char, 64> device{};   // one of this machine
  Cores cores;
};
RankCard card_of_this_process(const Device& device);

struct Neighbours {
  int on_machine = 1;  // ranks, this one among them
  int on_device = 1;
  int cores = 1;  // this rank's share of those it may run on: threads that do not get in others' way
};
Neighbours count_neighbours(std::span<const RankCard> cards, int rank);
// Collective over all ranks.
Neighbours meet_neighbours(World& world, const Device& device);

}  // namespace weft
