// Checks of each node by itself, and of which nodes there are.
#include <algorithm>

#include "weft/plan/check/faults.h"

namespace weft {

namespace {

bool in_range(std::int32_t first, std::int32_t count, std::size_t size) {
  return first >= 0 && count >= 0 && static_cast<std::size_t>(first) + static_cast<std::size_t>(count) <= size;
}

// A node that computes again must leave statistics alone, and somebody must need it.
void check_recomputation(const Plan& plan, NodeId self, FaultList& faults) {
  const Node& node = plan.nodes[self.index()];
  if (node.phase != Phase::recompute || !node.piece.valid()) return;
  bool needed = false;
  for (const BufferUse& use : plan.uses_of(node)) {
    if (use.access == Access::read) continue;
    const StorageClass storage = plan.value_of(use.buffer).storage;
    needed |= storage == StorageClass::activation;
    if (use.access == Access::add || (storage != StorageClass::activation && storage != StorageClass::scratch))
      faults.add({self}, fmt::format("{} is computed again, but it counts something or outlives the micro-batch",
                                     plan.name_of(use.buffer)));
  }
  if (!needed) faults.add({self}, "computes again what nobody reads");
}

// In every micro-batch, of the main part and of every MTP depth: the layers, then their final norm, then their head,
// which reads what that norm wrote.
void check_final_norms(const Plan& plan, FaultList& faults) {
  int depths = 0;
  for (const PlaceInfo& piece : plan.places) depths = std::max(depths, piece.depth + 1);
  std::vector<NodeId> norms(static_cast<std::size_t>(plan.micro_batches * depths));
  std::vector<bool> headed(norms.size());
  for (std::size_t i = 0; i < plan.nodes.size(); ++i) {
    const Node& node = plan.nodes[i];
    if ((node.phase != Phase::forward && node.phase != Phase::evaluate) || node.micro_batch < 0) continue;
    const PlaceInfo& piece = plan.place_of(node);
    if (!node.piece.valid()) continue;  // nodes that passes add between layers are not layers
    NodeId& norm = norms[static_cast<std::size_t>(node.micro_batch * depths + piece.depth)];
    if (piece.section == Section::final_norm) norm = node_id(i);
    if (piece.section == Section::layers && norm.valid())
      faults.add({node_id(i), norm},
                 fmt::format("a layer of {} runs after the final norm",
                             piece.depth == 0 ? "the main part" : fmt::format("MTP depth {}", piece.depth)));
    if (piece.section == Section::head_part && !norm.valid())
      faults.add({node_id(i)}, "a part of the head runs before the final norm");
    if (piece.section != Section::head) continue;
    if (!norm.valid()) {
      faults.add({node_id(i)}, "the head runs before the final norm");
      continue;
    }
    const auto reads_norm = [&](const BufferUse& use) {
      const auto made = plan.uses_of(plan.nodes[norm.index()]);
      return use.access == Access::read && std::any_of(made.begin(), made.end(), [&](const BufferUse& other) {
               return other.buffer == use.buffer && other.access != Access::read;
             });
    };
    const auto uses = plan.uses_of(node);
    if (std::none_of(uses.begin(), uses.end(), reads_norm))
      faults.add({node_id(i), norm}, "the head does not read what the final norm wrote");
    headed[static_cast<std::size_t>(node.micro_batch * depths + piece.depth)] = true;
  }
  for (std::size_t i = 0; i < norms.size(); ++i)
    if (norms[i].valid() && !headed[i])
      faults.add({norms[i]}, "the final norm stands on a stage without the head that reads it");
}

}  // namespace

void check_indices(const Plan& plan, FaultList& faults) {
  for (std::size_t i = 0; i < plan.buffers.size(); ++i)
    if (!plan.buffers[i].value.valid() || plan.buffers[i].value.index() >= plan.values.size() ||
        plan.buffers[i].micro_batch >= plan.micro_batches)
      return faults.add({}, fmt::format("buffer {} is of value {} and micro-batch {}, which do not exist", i,
                                        plan.buffers[i].value.value, plan.buffers[i].micro_batch));
  const auto known = [&](BufferId buffer) { return buffer.valid() && buffer.index() < plan.buffers.size(); };
  for (std::size_t i = 0; i < plan.nodes.size(); ++i) {
    const Node& node = plan.nodes[i];
    if (!node.place.valid() || node.place.index() >= plan.places.size())
      return faults.add({}, fmt::format("node {} is at place {}, which does not exist", i, node.place.value));
    if (node.micro_batch < -1 || node.micro_batch >= plan.micro_batches ||
        !in_range(node.first_use, node.uses, plan.uses.size()) ||
        !in_range(node.first_collective, node.collectives, plan.collectives.size()))
      return faults.add({node_id(i)}, "its micro-batch, uses or collectives do not exist");
    for (const BufferUse& use : plan.uses_of(node))
      if (!known(use.buffer)) return faults.add({node_id(i)}, fmt::format("uses buffer {}", use.buffer.value));
    for (const NodeCollective& c : plan.collectives_of(node)) {
      if (!c.group.valid() || c.group.index() >= plan.groups.size())
        return faults.add({node_id(i)}, fmt::format("communicates over group {}, which does not exist", c.group.value));
      const bool sends = c.kind != CollectiveKind::receive && c.kind != CollectiveKind::barrier;
      const bool receives = c.kind != CollectiveKind::send && c.kind != CollectiveKind::barrier;
      for (const auto& [buffer, wanted] : {std::pair(c.send, sends), std::pair(c.receive, receives)})
        if (wanted ? !known(buffer) : buffer.valid())
          return faults.add({node_id(i)}, fmt::format("{} of buffer {}", name_of(c.kind), buffer.value));
      for (BufferId buffer : {c.send_counts, c.receive_counts, c.host_send_counts, c.host_receive_counts})
        if (buffer.valid() && !known(buffer))
          return faults.add({node_id(i)}, fmt::format("takes counts from buffer {}", buffer.value));
    }
  }
}

void check_nodes(const Plan& plan, FaultList& faults) {
  // Every phase that both the piece and this kind of plan have: once per micro-batch, or once per step.
  const auto M = static_cast<std::size_t>(plan.micro_batches);
  std::vector<NodeId> seen(plan.places.size() * phase_count * M);
  const auto slot = [&](std::size_t place, Phase phase, std::size_t m) -> NodeId& {
    return seen[(place * phase_count + static_cast<std::size_t>(phase)) * M + m];
  };
  for (std::size_t i = 0; i < plan.nodes.size(); ++i) {
    const Node& node = plan.nodes[i];
    if (!has_phase(plan.kind, node.phase))
      faults.add({node_id(i)},
                 fmt::format("{} does not belong in a plan of kind {}", plan.name_of(node), name_of(plan.kind)));
    if (!node.piece.valid()) continue;  // passes may add as many as they need
    check_recomputation(plan, node_id(i), faults);
    NodeId& other = slot(node.place.index(), node.phase, static_cast<std::size_t>(std::max(0, node.micro_batch)));
    if (other.valid()) faults.add({node_id(i), other}, fmt::format("{} appears twice", plan.name_of(node)));
    other = node_id(i);
    const unsigned phases = plan.place_of(node).phases;
    if (phases != 0 && (phases >> static_cast<unsigned>(node.phase) & 1u) == 0)
      faults.add({node_id(i)}, fmt::format("{} has no code", plan.name_of(node)));
  }
  for (std::size_t place = 0; place < plan.places.size(); ++place)
    for (int p = 0; p < phase_count; ++p) {
      const auto phase = static_cast<Phase>(p);
      if (!has_phase(plan.kind, phase) || (plan.places[place].phases & (1u << p)) == 0) continue;
      // An update runs once per step, or in every micro-batch: its nodes show which.
      const bool step = phase == Phase::update &&
                        std::none_of(&slot(place, phase, 0), &slot(place, phase, 0) + M,
                                     [&](NodeId id) { return id.valid() && plan.nodes[id.index()].micro_batch >= 0; });
      for (std::size_t m = 0; m < (step ? 1 : M); ++m) {
        if (slot(place, phase, m).valid()) continue;
        Node missing;
        missing.phase = phase;
        missing.place = PlaceId(static_cast<std::int64_t>(place));
        missing.micro_batch = step ? -1 : static_cast<std::int32_t>(m);
        faults.add({}, fmt::format("{} is missing", plan.name_of(missing)));
      }
    }
  check_final_norms(plan, faults);
}

}  // namespace weft
