#include "weft/plan/check/calls.h"

#include <algorithm>

#include <fmt/format.h>

namespace weft {

Calls calls_of(const Plan& plan) {
  std::vector<std::vector<Call>> found(plan.groups.size() * lane_count);
  for (std::size_t i = 0; i < plan.nodes.size(); ++i)
    for (std::int32_t c = 0; c < plan.nodes[i].collectives; ++c) {
      const std::int32_t index = plan.nodes[i].first_collective + c;
      const std::size_t group = plan.collectives[static_cast<std::size_t>(index)].group.index();
      found[group * lane_count + static_cast<std::size_t>(meeting_lane(plan.nodes[i].lane))].push_back(
          {NodeId(static_cast<std::int64_t>(i)), index});
    }
  Calls calls;
  for (std::size_t i = 0; i < found.size(); ++i)
    if (!found[i].empty())
      calls[{GroupId(static_cast<std::int64_t>(i / lane_count)), static_cast<Lane>(i % lane_count)}] =
          std::move(found[i]);
  return calls;
}

std::string difference(const Plan& p, const Call& x, const Plan& q, const Call& y) {
  const NodeCollective &a = p.collectives[static_cast<std::size_t>(x.collective)],
                       &b = q.collectives[static_cast<std::size_t>(y.collective)];
  const Node &m = p.nodes[x.node.index()], &n = q.nodes[y.node.index()];
  if (a.kind != b.kind) return fmt::format("{} meets {}", name_of(a.kind), name_of(b.kind));
  if (m.phase != n.phase || m.micro_batch != n.micro_batch || p.place_of(m).name != q.place_of(n).name)
    return "different nodes meet";
  if (a.kind == CollectiveKind::barrier) return {};
  if (p.value_of(a.send).name != q.value_of(b.send).name)
    return fmt::format("{} meets {}", p.name_of(a.send), q.name_of(b.send));
  const auto describe = [](const Plan& plan, BufferId buffer) {
    const ValueInfo& v = plan.value_of(buffer);
    return fmt::format("{} {} {}", plan.name_of(buffer), name_of(v.dtype), to_text(v.shape));
  };
  const ValueInfo &sent = p.value_of(a.send), &received = q.value_of(b.receive), &back = q.value_of(b.send),
                  &taken = p.value_of(a.receive);
  const auto alike = [](const ValueInfo& u, const ValueInfo& v) { return u.shape == v.shape && u.dtype == v.dtype; };
  const bool turns = a.kind == CollectiveKind::to_next || a.kind == CollectiveKind::to_previous;
  if (turns || a.kind == CollectiveKind::all_reduce || a.kind == CollectiveKind::broadcast) {
    if (!alike(sent, received)) return fmt::format("{} meets {}", describe(p, a.send), describe(q, b.receive));
    if (a.first_row != b.first_row) return fmt::format("sums begin at rows {} and {}", a.first_row, b.first_row);
    if (a.end_row != b.end_row) return fmt::format("sums end before rows {} and {}", a.end_row, b.end_row);
    if (a.peer != b.peer) return fmt::format("the roots are {} and {}", a.peer, b.peer);
    return {};
  }
  if (a.kind == CollectiveKind::all_gather || a.kind == CollectiveKind::reduce_scatter) {
    if (!alike(sent, back)) return fmt::format("{} meets {}", describe(p, a.send), describe(q, b.send));
    if (!alike(taken, received)) return fmt::format("{} meets {}", describe(p, a.receive), describe(q, b.receive));
    return {};
  }
  if (a.send_counts.valid() != b.receive_counts.valid()) return "one side has counts, the other equal parts";
  // With counts, rows must have the same type and width, and the numbers of counts must agree; without, the sizes must.
  const auto fits = [&](const ValueInfo& u, const ValueInfo& v) {
    const auto width = [](const ValueInfo& i) { return i.shape.elements() / std::max<std::int64_t>(1, i.shape[0]); };
    return u.dtype == v.dtype &&
           (a.send_counts.valid() ? width(u) == width(v) : u.shape.elements() == v.shape.elements());
  };
  if (!fits(sent, received)) return fmt::format("{} goes to {}", describe(p, a.send), describe(q, b.receive));
  if (!fits(back, taken)) return fmt::format("{} goes to {}", describe(q, b.send), describe(p, a.receive));
  if (a.send_counts.valid() &&
      p.value_of(a.send_counts).shape.elements() != q.value_of(b.receive_counts).shape.elements())
    return fmt::format("{} counts rows for {}", describe(p, a.send_counts), describe(q, b.receive_counts));
  return {};
}

}  // namespace weft
