// What holds for every node by itself, and which nodes there are.
#include <algorithm>

#include "weft/plan/faults.h"
#include "weft/plan/timeline.h"

namespace weft {

namespace {

bool in_range(std::int32_t first, std::int32_t count, std::size_t size) {
  return first >= 0 && count >= 0 && static_cast<std::size_t>(first) + static_cast<std::size_t>(count) <= size;
}

// In every micro-batch, of the main part and of every MTP depth: the layers, then their final norm, then their head,
// which reads what that norm wrote.
void check_final_norms(const Plan& plan, FaultList& faults) {
  int depths = 0;
  for (const PieceInfo& piece : plan.pieces) depths = std::max(depths, piece.depth + 1);
  std::vector<NodeId> norms(static_cast<std::size_t>(plan.micro_batches * depths));
  for (std::size_t i = 0; i < plan.nodes.size(); ++i) {
    const Node& node = plan.nodes[i];
    if ((node.phase != Phase::forward && node.phase != Phase::evaluate) || node.micro_batch < 0) continue;
    const PieceInfo& piece = plan.pieces[node.piece.index()];
    NodeId& norm = norms[static_cast<std::size_t>(node.micro_batch * depths + piece.depth)];
    if (piece.part == Part::final_norm) norm = node_id(i);
    if (piece.part == Part::layers && norm.valid())
      faults.add({node_id(i), norm},
                 fmt::format("a layer of {} runs after the final norm",
                             piece.depth == 0 ? "the main part" : fmt::format("MTP depth {}", piece.depth)));
    if (piece.part != Part::head) continue;
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
  }
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
    if (!node.piece.valid() || node.piece.index() >= plan.pieces.size())
      return faults.add({}, fmt::format("node {} is of piece {}, which does not exist", i, node.piece.value));
    if (node.micro_batch < -1 || node.micro_batch >= plan.micro_batches ||
        !in_range(node.first_use, node.uses, plan.uses.size()) ||
        !in_range(node.first_collective, node.collectives, plan.collectives.size()))
      return faults.add({node_id(i)}, "its micro-batch, uses or collectives do not exist");
    for (const BufferUse& use : plan.uses_of(node))
      if (!known(use.buffer)) return faults.add({node_id(i)}, fmt::format("uses buffer {}", use.buffer.value));
    for (const NodeCollective& c : plan.collectives_of(node)) {
      if (c.group < 0 || static_cast<std::size_t>(c.group) >= plan.groups.size())
        return faults.add({node_id(i)}, fmt::format("communicates over group {}, which does not exist", c.group));
      for (BufferId buffer : {c.send, c.receive})
        if (!known(buffer)) return faults.add({node_id(i)}, fmt::format("sends or receives buffer {}", buffer.value));
      for (BufferId buffer : {c.send_counts, c.receive_counts})
        if (buffer.valid() && !known(buffer))
          return faults.add({node_id(i)}, fmt::format("takes counts from buffer {}", buffer.value));
    }
  }
}

void check_nodes(const Plan& plan, FaultList& faults) {
  // Every phase that plans of this kind have, of every piece that has it: once in every micro-batch, or once a step.
  const auto M = static_cast<std::size_t>(plan.micro_batches);
  const auto once_a_step = [](Phase phase) { return phase == Phase::reduce || phase == Phase::update; };
  std::vector<NodeId> seen(plan.pieces.size() * phase_count * M);
  const auto place = [&](std::size_t piece, Phase phase, std::size_t m) -> NodeId& {
    return seen[(piece * phase_count + static_cast<std::size_t>(phase)) * M + m];
  };
  for (std::size_t i = 0; i < plan.nodes.size(); ++i) {
    const Node& node = plan.nodes[i];
    NodeId& other = place(node.piece.index(), node.phase, static_cast<std::size_t>(std::max(0, node.micro_batch)));
    if (other.valid()) faults.add({node_id(i), other}, fmt::format("{} is there twice", plan.name_of(node)));
    other = node_id(i);
    const unsigned phases = plan.pieces[node.piece.index()].phases;
    if (phases != 0 && (phases >> static_cast<unsigned>(node.phase) & 1u) == 0)
      faults.add({node_id(i)}, fmt::format("{} has no code", plan.name_of(node)));
    if (!has_phase(plan.kind, node.phase))
      faults.add({node_id(i)},
                 fmt::format("{} has no place in a plan of kind {}", plan.name_of(node), name_of(plan.kind)));
  }
  for (std::size_t piece = 0; piece < plan.pieces.size(); ++piece)
    for (int p = 0; p < phase_count; ++p) {
      const auto phase = static_cast<Phase>(p);
      if (!has_phase(plan.kind, phase) || (plan.pieces[piece].phases & (1u << p)) == 0) continue;
      // A node of the step may also stand in every micro-batch; which one it is, its nodes say.
      const bool step = once_a_step(phase) &&
                        std::none_of(&place(piece, phase, 0), &place(piece, phase, 0) + M,
                                     [&](NodeId id) { return id.valid() && plan.nodes[id.index()].micro_batch >= 0; });
      for (std::size_t m = 0; m < (step ? 1 : M); ++m) {
        if (place(piece, phase, m).valid()) continue;
        Node missing;
        missing.phase = phase;
        missing.piece = PieceId(static_cast<std::int64_t>(piece));
        missing.micro_batch = step ? -1 : static_cast<std::int32_t>(m);
        faults.add({}, fmt::format("{} is missing", plan.name_of(missing)));
      }
    }
  check_final_norms(plan, faults);
}

void check_collectives(const Plan& plan, FaultList& faults) {
  // By buffer of counts: where the peers' counts came by an exchange.
  struct Exchanged {
    BufferId with;
    std::int32_t group = -1;
  };
  std::vector<Exchanged> exchanged(plan.collectives.empty() ? 0 : plan.buffers.size());
  for (std::size_t i = 0; i < plan.nodes.size(); ++i) {
    const Node& node = plan.nodes[i];
    const NodeId self = node_id(i);
    if (node.collectives == 0) {
      if (node.phase == Phase::reduce) faults.add({self}, "a reduction that communicates with nobody");
      continue;
    }
    if (!lane_communicates(node.lane))
      faults.add({self}, fmt::format("communicates on lane {}, which computes", name_of(node.lane)));
    const auto uses = plan.uses_of(node);
    const auto has = [&](BufferId buffer, bool writes) {
      return std::any_of(uses.begin(), uses.end(), [&](const BufferUse& use) {
        return use.buffer == buffer && (!writes || use.access != Access::read);
      });
    };
    for (const NodeCollective& c : plan.collectives_of(node)) {
      const ValueInfo &send = plan.value_of(c.send), &receive = plan.value_of(c.receive);
      const auto fault = [&](const std::string& what) {
        faults.add({self}, fmt::format("{} of {}: {}", name_of(c.kind), plan.name_of(c.send), what));
      };
      if (!has(c.send, false)) fault("the node does not use what it sends");
      if (!has(c.receive, true))
        fault(fmt::format("the node does not declare that it writes {}", plan.name_of(c.receive)));
      if (send.dtype != receive.dtype) fault(fmt::format("{} has another type", plan.name_of(c.receive)));
      if (c.kind == CollectiveKind::all_reduce) {
        if (!(send.shape == receive.shape)) fault(fmt::format("{} has another shape", plan.name_of(c.receive)));
        if (c.first_row < 0 || (c.first_row > 0 && c.first_row >= send.shape[0]))
          fault(fmt::format("begins with row {} of {}", c.first_row, to_text(send.shape)));
        const std::string& group = plan.groups[static_cast<std::size_t>(c.group)];
        if (receive.summed_over.empty()) {
          fault(fmt::format("each rank has its own {}", plan.name_of(c.receive)));
        } else if (group != receive.summed_over || c.first_row != receive.first_summed_row) {
          fault(fmt::format("goes over '{}' from row {}, but {} is summed over '{}' from row {}", group, c.first_row,
                            plan.name_of(c.receive), receive.summed_over, receive.first_summed_row));
        }
        continue;
      }
      if (!c.send_counts.valid() && !c.receive_counts.valid()) {
        if (send.counts.valid() || receive.counts.valid()) fault("goes in even parts, but its rows lie by counts");
        exchanged[c.send.index()] = {c.receive, c.group};
        continue;
      }
      if (!c.send_counts.valid() || !c.receive_counts.valid()) {
        fault("has counts of one side only");
        continue;
      }
      for (BufferId counts : {c.send_counts, c.receive_counts})
        if (!has(counts, false)) fault(fmt::format("the node does not read {}", plan.name_of(counts)));
      for (const auto& [rows, counts] : {std::pair(c.send, c.send_counts), std::pair(c.receive, c.receive_counts)})
        if (plan.value_of(rows).counts != plan.buffers[counts.index()].value)
          fault(fmt::format("the rows of {} do not lie by {}", plan.name_of(rows), plan.name_of(counts)));
      const auto came = [&](BufferId from, BufferId to) {
        return exchanged[from.index()].with == to && exchanged[from.index()].group == c.group;
      };
      if (!came(c.send_counts, c.receive_counts) && !came(c.receive_counts, c.send_counts))
        fault(fmt::format("goes by {} and {}, which were not exchanged over {}", plan.name_of(c.send_counts),
                          plan.name_of(c.receive_counts), plan.groups[static_cast<std::size_t>(c.group)]));
    }
    if (node.phase != Phase::reduce) continue;
    const auto collectives = plan.collectives_of(node);
    for (const BufferUse& use : uses)
      if (use.access != Access::read && std::none_of(collectives.begin(), collectives.end(),
                                                     [&](const NodeCollective& c) { return c.receive == use.buffer; }))
        faults.add({self},
                   fmt::format("{} is written by a reduction that does not communicate it", plan.name_of(use.buffer)));
  }
}

}  // namespace weft
