#include "tests/plan/passes/stage_transfers.h"

#include "weft/base/error.h"

namespace weft {

namespace {

// Where a micro-batch enters and leaves a stage.
struct Ends {
  std::int32_t first = -1, last = -1;  // forward nodes
  BufferId sent;                       // what the last one writes
};

std::vector<Ends> ends_of(const Plan& plan) {
  std::vector<Ends> ends(static_cast<std::size_t>(plan.micro_batches));
  for (std::size_t i = 0; i < plan.nodes.size(); ++i) {
    const Node& node = plan.nodes[i];
    if (node.phase != Phase::forward || node.lane != Lane::compute || node.micro_batch < 0) continue;
    Ends& own = ends[static_cast<std::size_t>(node.micro_batch)];
    if (own.first < 0) own.first = static_cast<std::int32_t>(i);
    if (plan.place_of(node).section != Section::layers) continue;
    for (const BufferUse& use : plan.uses_of(node))
      if (use.access == Access::write && plan.value_of(use.buffer).storage == StorageClass::activation) {
        own.last = static_cast<std::int32_t>(i);
        own.sent = use.buffer;
      }
  }
  for (const Ends& own : ends) WEFT_CHECK(own.last >= 0, "a micro-batch has no forward pass");
  return ends;
}

}  // namespace

Plan insert_stage_transfers(const Plan& plan, GroupId group, int stage, int stages) {
  const std::vector<Ends> ends = ends_of(plan);
  Plan out = plan;
  out.nodes.clear();
  const PlaceId receives = out.add_place(0, "stage", "receive"), sends = out.add_place(0, "stage", "send");
  ValueInfo received = plan.value_of(ends.front().sent);
  received.name = "stage.received";
  const ValueId value = out.add_value(received);
  const auto transfer = [&](CollectiveKind kind, int peer, BufferId buffer, std::int32_t micro_batch) {
    NodeCollective c;
    c.kind = kind;
    c.group = group;
    (kind == CollectiveKind::send ? c.send : c.receive) = buffer;
    c.bytes = kind == CollectiveKind::send ? received.bytes : 0;
    c.peer = peer;
    c.match = MatchId(micro_batch);
    const BufferUse use{buffer, kind == CollectiveKind::send ? Access::read : Access::write};
    out.nodes.push_back(out.make_node(NodeKind::communicate, Phase::forward, Lane::tensor,
                                      kind == CollectiveKind::send ? sends : receives, micro_batch, {&use, 1},
                                      {&c, 1}));
  };
  for (std::size_t i = 0; i < plan.nodes.size(); ++i) {
    Node node = plan.nodes[i];
    const Ends* own = node.micro_batch < 0 ? nullptr : &ends[static_cast<std::size_t>(node.micro_batch)];
    if (own && own->first == static_cast<std::int32_t>(i) && stage > 0) {
      const BufferId buffer = out.add_buffer(value, node.micro_batch);
      transfer(CollectiveKind::receive, stage - 1, buffer, node.micro_batch);
      const auto uses = plan.uses_of(node);
      node.first_use = static_cast<std::int32_t>(out.uses.size());
      out.uses.insert(out.uses.end(), uses.begin(), uses.end());
      out.uses.push_back({buffer});
      ++node.uses;
    }
    out.nodes.push_back(node);
    if (own && own->last == static_cast<std::int32_t>(i) && stage + 1 < stages)
      transfer(CollectiveKind::send, stage + 1, own->sent, node.micro_batch);
  }
  return out;
}

StagePlans make_stages(const Plan& plan, const Layout& layout) {
  StagePlans out;
  const int stages = layout.stage_count();
  for (int stage = 0; stage < stages; ++stage) {
    out.plans.push_back(insert_stage_transfers(plan, layout.stages(), stage, stages));
    out.memories.push_back(plan_memory(out.plans.back()));
    out.ranks.plans.emplace_back(out.plans.back(), out.memories.back());
  }
  for (int rank = 0; rank < layout.ranks(); ++rank) out.ranks.plan_of.push_back(layout.seen_from(RankId(rank)).stage());
  for (int id = 0; id < Layout::group_count; ++id) out.ranks.groups.push_back(layout.all_groups(GroupId(id)));
  return out;
}

Layout staged_layout(int stages, int ranks, int expert_ranks) {
  return Layout::of({.dp = ranks, .pp = stages, .ep = expert_ranks});
}

}  // namespace weft
