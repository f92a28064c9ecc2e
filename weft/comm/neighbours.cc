#include "weft/comm/neighbours.h"

#include <algorithm>
#include <fstream>
#include <numeric>
#include <type_traits>
#include <vector>

#include <sched.h>
#include <unistd.h>

#include "weft/comm/host_stream.h"

namespace weft {

namespace {

std::array<char, 64> fixed(const std::string& text) {
  std::array<char, 64> out{};
  std::copy_n(text.begin(), std::min(text.size(), out.size() - 1), out.begin());
  return out;
}

// The kernel's id of this boot: the same in all containers of a machine, whatever their host names.
std::string machine_name() {
  std::string name;
  if (std::ifstream file("/proc/sys/kernel/random/boot_id"); file >> name) return name;
  char host[64] = {};
  gethostname(host, sizeof(host) - 1);
  return host;
}

}  // namespace

Cores usable_cores() {
  Cores cores;
  std::array<cpu_set_t, cores.size() / CPU_SETSIZE> sets{};
  // std::thread::hardware_concurrency counts the machine's cores even if this process is bound to one of them.
  if (sched_getaffinity(0, sizeof(sets), sets.data()) == 0)
    for (std::size_t core = 0; core < cores.size(); ++core) cores[core] = CPU_ISSET_S(core, sizeof(sets), sets.data());
  if (cores.none()) cores.set(0);
  return cores;
}

int usable_core_count() { return static_cast<int>(usable_cores().count()); }

RankPlacement placement_of_this_process(const Device& device) {
  return {fixed(machine_name()), fixed(device.identity()), usable_cores()};
}

Neighbours count_neighbours(std::span<const RankPlacement> placements, int rank) {
  const RankPlacement& own = placements[static_cast<std::size_t>(rank)];
  Neighbours found{0, 0, 0};
  std::vector<int> sharers(own.cores.size());
  for (const RankPlacement& placement : placements) {
    if (placement.machine != own.machine) continue;
    ++found.on_machine;
    if (placement.device == own.device) ++found.on_device;
    for (std::size_t core = 0; core < sharers.size(); ++core) sharers[core] += placement.cores[core] ? 1 : 0;
  }
  double share = 1e-6;  // so that three thirds add up to one
  for (std::size_t core = 0; core < sharers.size(); ++core)
    if (own.cores[core]) share += 1.0 / sharers[core];
  found.cores = std::max(1, static_cast<int>(share));
  return found;
}

Neighbours find_neighbours(World& world, const Device& device) {
  const std::unique_ptr<Communicator> group = world.make_group_of_all("neighbours");
  RankPlacement own = placement_of_this_process(device);
  std::vector<RankPlacement> placements(static_cast<std::size_t>(world.size()));
  static_assert(std::is_trivially_copyable_v<RankPlacement>);
  HostStream stream;
  const auto bytes = static_cast<std::int64_t>(sizeof(RankPlacement));
  group->all_gather(stream, Tensor(&own, DType::u8, Shape{bytes}),
                    Tensor(placements.data(), DType::u8, Shape{bytes * world.size()}));
  return count_neighbours(placements, static_cast<int>(world.rank().value));
}

}  // namespace weft
