#include "weft/execute/stream_memory.h"

#include <algorithm>
#include <set>
#include <tuple>

#include "weft/execute/dry_run.h"

namespace weft {

std::size_t StreamMemory::total() const {
  std::size_t sum = 0;
  for (const WorkingMemory& lane : lanes) sum += lane.total();
  return sum;
}

StreamMemory stream_memory(const Module& module, const Plan& plan, Device& device, bool lanes) {
  StreamMemory memory;
  WorkingMemory& compute = memory.lanes[static_cast<std::size_t>(Lane::compute)];
  std::set<std::tuple<Lane, PlaceId, Phase>> seen;
  for (const Node& node : plan.nodes) {
    if (!seen.emplace(node.lane, node.place, node.phase).second) continue;
    const WorkingMemory need = device.working_memory([&](const Operations& operations, Stream& stream) {
      for (Store store : {Store::write, Store::add})
        dry_run(module, plan, node, operations, stream, {DryRun::Rows::all, store});
    });
    compute.grow_to(need);
    if (lanes && node.lane != Lane::compute) memory.lanes[static_cast<std::size_t>(node.lane)].grow_to(need);
  }
  return memory;
}

}  // namespace weft
