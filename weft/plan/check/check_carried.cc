// Nodes that a step has left to the next one. check_buffers sees them at the end of their own step. This file checks
// them at their position in the step that runs them: what they need must have outlived its step and must not be
// overwritten yet, and no node may have used what they change.
#include "weft/plan/check/faults.h"

namespace weft {

void check_carried(const Plan& plan, FaultList& faults) {
  struct OwnUses {
    NodeId reader, writer;  // the first of each among the nodes of this step so far
  };
  std::vector<OwnUses> own(plan.buffers.size());
  std::vector<bool> computed(plan.buffers.size());  // by a node of the step
  for (const Node& node : plan.nodes)
    for (const BufferUse& use : plan.uses_of(node))
      if (!node.carried && use.access != Access::read) computed[use.buffer.index()] = true;
  for (std::size_t i = 0; i < plan.nodes.size(); ++i) {
    const Node& node = plan.nodes[i];
    const NodeId self = node_id(i);
    if (node.carried && node.phase != Phase::update)
      faults.add({self}, "is left to the next step, but is not an update");
    for (const BufferUse& use : plan.uses_of(node)) {
      const std::string name = plan.name_of(use.buffer);
      OwnUses& seen = own[use.buffer.index()];
      if (!node.carried) {
        NodeId& first = use.access == Access::read ? seen.reader : seen.writer;
        if (!first.valid()) first = self;
        continue;
      }
      const StorageClass storage = plan.value_of(use.buffer).storage;
      if (storage == StorageClass::input || storage == StorageClass::output ||
          (shares_arena(storage) && storage != StorageClass::scratch))
        faults.add({self}, fmt::format("{} does not outlive the step that left this node to the next", name));
      if (storage == StorageClass::step && !computed[use.buffer.index()])
        faults.add({self}, fmt::format("{} is rewritten by the host before the step that runs this node", name));
      if (seen.writer.valid())
        faults.add({self, seen.writer},
                   fmt::format("{} is overwritten before the update of the previous step has used it", name));
      if (use.access != Access::read && seen.reader.valid())
        faults.add({self, seen.reader}, fmt::format("{} is read before its update of the previous step", name));
    }
  }
}

}  // namespace weft
