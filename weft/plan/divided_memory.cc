#include "weft/plan/divided_memory.h"

#include <algorithm>
#include <map>
#include <tuple>

namespace weft {

namespace {

// Bytes in use, and the most there were.
struct HighWater {
  std::int64_t now = 0, most = 0;
  bool add(std::int64_t bytes) {  // true: there were never more
    now += bytes;
    if (now <= most) return false;
    most = now;
    return true;
  }
};

std::int64_t bytes_of(const ValueInfo& value) {
  return (value.bytes + MemoryPlan::alignment - 1) / MemoryPlan::alignment * MemoryPlan::alignment;
}

// What was gathered for the same pass of the same micro-batch through the same unit.
using Stay = std::tuple<int, bool, std::int32_t>;

}  // namespace

DividedMemory divided_memory(const Plan& plan, const MemoryPlan& memory) {
  DividedMemory divided;
  std::vector<Stay> stays(plan.buffers.size());  // of gathered buffers
  for (const Node& node : plan.nodes)
    for (const NodeCollective& c : plan.collectives_of(node))
      if (c.kind == CollectiveKind::all_gather)
        stays[c.receive.index()] = {plan.place_of(node).unit,
                                    node.phase != Phase::forward && node.phase != Phase::evaluate, node.micro_batch};
  std::vector<std::vector<std::size_t>> begins(plan.nodes.size()), ends(plan.nodes.size());
  for (std::size_t b = 0; b < plan.buffers.size(); ++b) {
    const ValueInfo& value = plan.value_of(BufferId(static_cast<std::int64_t>(b)));
    if (value.part > 0 && value.storage == StorageClass::weight) divided.weights += bytes_of(value);
    if (value.part > 0 && value.storage == StorageClass::gradient) divided.gradients += bytes_of(value);
    if (value.part > 0 && value.storage == StorageClass::state) divided.states += bytes_of(value);
    const Lifetime life = memory.lifetimes[b];
    if (life.first < 0 || !shares_arena(value.storage)) continue;
    begins[static_cast<std::size_t>(life.first)].push_back(b);
    ends[static_cast<std::size_t>(life.last)].push_back(b);
  }
  HighWater gathered, of_instances, in_flight;
  std::map<Stay, int> here;  // by stay, how many tensors
  const auto count = [&](std::size_t b, int sign) {
    const ValueInfo& value = plan.value_of(BufferId(static_cast<std::int64_t>(b)));
    const std::int64_t bytes = sign * bytes_of(value);
    if (value.storage == StorageClass::partial || (value.storage == StorageClass::activation && value.part > 0))
      in_flight.add(bytes);
    if (value.storage != StorageClass::gathered) return;
    if (value.part > 0) {
      of_instances.add(bytes);
      return;
    }
    if ((here[stays[b]] += sign) == 0) here.erase(stays[b]);
    if (gathered.add(bytes)) divided.units = static_cast<int>(here.size());
  };
  for (std::size_t i = 0; i < plan.nodes.size(); ++i) {
    for (const std::size_t b : begins[i]) count(b, 1);
    for (const std::size_t b : ends[i]) count(b, -1);
  }
  divided.gathered = gathered.most;
  divided.of_instances = of_instances.most;
  divided.in_flight = in_flight.most;
  return divided;
}

}  // namespace weft
