#include "weft/plan/check_ranks.h"

#include <algorithm>
#include <set>

#include <fmt/format.h>

#include "weft/base/error.h"
#include "weft/plan/rank_kinds.h"

namespace weft {

namespace {

// A call of a communicator: a collective of a node.
struct Call {
  NodeId node;
  std::int32_t collective = 0;  // of Plan::collectives
};
// The calls of every communicator, by (group, lane), in the order of the lane.
using Calls = std::map<std::pair<std::string, Lane>, std::vector<Call>>;

Calls calls_of(const Plan& plan) {
  std::vector<std::vector<Call>> found(plan.groups.size() * lane_count);
  for (std::size_t i = 0; i < plan.nodes.size(); ++i)
    for (std::int32_t c = 0; c < plan.nodes[i].collectives; ++c) {
      const std::int32_t index = plan.nodes[i].first_collective + c;
      const auto group = static_cast<std::size_t>(plan.collectives[static_cast<std::size_t>(index)].group);
      found[group * lane_count + static_cast<std::size_t>(plan.nodes[i].lane)].push_back(
          {NodeId(static_cast<std::int64_t>(i)), index});
    }
  Calls calls;
  for (std::size_t i = 0; i < found.size(); ++i)
    if (!found[i].empty())
      calls[{plan.groups[i / lane_count], static_cast<Lane>(i % lane_count)}] = std::move(found[i]);
  return calls;
}

class RankCheck {
 public:
  explicit RankCheck(const RankPlans& ranks) : ranks_(ranks), kinds_(ranks) {}

  std::vector<PlanFault> run() {
    for (std::size_t c = 0; c < ranks_.classes.size(); ++c) check_class(c);
    if (!faults_.empty()) return std::move(faults_);  // ranks are compared when each is right by itself
    for (const RankPlans::Class& c : ranks_.classes) calls_.push_back(calls_of(*c.plan));
    for (std::size_t kind = 0; kind < kinds_.count(); ++kind) {
      check_groups(kind);
      if (!known_groups_) continue;
      check_reductions(kind);
      check_exchanges(kind);
      compare_calls(kind);
    }
    if (faults_.empty()) check_rendezvous(ranks_, kinds_, faults_);
    return std::move(faults_);
  }

 private:
  const Plan& plan_of(std::size_t kind) const { return *kinds_.class_of(kind).plan; }
  const Calls& calls(std::size_t kind) const { return calls_[static_cast<std::size_t>(kinds_.class_index(kind))]; }

  void check_class(std::size_t index) {
    std::vector<RankId> own;
    for (std::size_t r = 0; r < ranks_.class_of.size(); ++r)
      if (ranks_.class_of[r] == static_cast<std::int32_t>(index)) own.push_back(RankId(static_cast<std::int64_t>(r)));
    if (own.empty()) return;
    const RankPlans::Class& c = ranks_.classes[index];
    std::vector<PlanFault> found = check_plan(*c.plan, ranks_text(own));
    if (found.empty() && c.memory) found = check_memory(*c.plan, *c.memory, ranks_text(own));
    for (PlanFault& fault : found) {
      fault.ranks.assign(fault.nodes.size(), own.front());
      faults_.push_back(std::move(fault));
    }
  }

  struct At {
    std::size_t kind;
    NodeId node;
  };
  void fault(std::initializer_list<At> places, std::string message) {
    PlanFault found;
    for (const At& at : places) {
      if (!at.node.valid()) continue;
      const Plan& plan = plan_of(at.kind);
      const RankId rank = kinds_.first_rank(at.kind);
      message += fmt::format("\n    rank {}, node {}: {}", rank.value, at.node.value,
                             plan.name_of(plan.nodes[at.node.index()]));
      found.nodes.push_back(at.node);
      found.ranks.push_back(rank);
    }
    found.message = std::move(message);
    faults_.push_back(std::move(found));
  }

  void check_groups(std::size_t kind) {
    for (const auto& [key, list] : calls(kind))
      if (!kinds_.has_group(key.first)) {
        fault({{kind, list.front().node}},
              fmt::format("communicates over '{}', which is no group of this run", key.first));
        known_groups_ = false;
      }
  }

  // Every gradient is summed over the ranks that hold its parameter, those and no others. That it is summed over the
  // group which its value names, check_plan has seen.
  void check_reductions(std::size_t kind) {
    const Plan& plan = plan_of(kind);
    if (plan.kind != PlanKind::train) return;
    for (std::size_t i = 0; i < plan.buffers.size(); ++i) {
      const BufferId buffer(static_cast<std::int64_t>(i));
      const ValueInfo& value = plan.value_of(buffer);
      if (value.storage != Storage::gradient) continue;
      const std::string& name = value.expert ? ranks_.expert_replicas : ranks_.dense_replicas;
      const RankGroup holders = ranks_of(name, kind);
      if (value.summed_over.empty()) {
        if (holders.size() > 1)
          fault({{kind, last_writer(plan, buffer)}}, fmt::format("{} is not summed over '{}': {} hold its parameter",
                                                                 plan.name_of(buffer), name, ranks_text(holders)));
      } else if (const RankGroup& over = kinds_.group(value.summed_over, kind); over != holders) {
        fault({{kind, last_writer(plan, buffer)}},
              fmt::format("{} is summed over {} ('{}'), but {} ('{}') hold its parameter", plan.name_of(buffer),
                          ranks_text(over), value.summed_over, ranks_text(holders), name));
      }
    }
  }
  // The group of that name; the rank alone where the run has none.
  RankGroup ranks_of(const std::string& name, std::size_t kind) const {
    return kinds_.has_group(name) ? kinds_.group(name, kind) : RankGroup{kinds_.first_rank(kind)};
  }
  static NodeId last_writer(const Plan& plan, BufferId buffer) {
    for (std::size_t i = plan.nodes.size(); i-- > 0;)
      for (const BufferUse& use : plan.uses_of(plan.nodes[i]))
        if (use.buffer == buffer && use.access != Access::read) return NodeId(static_cast<std::int64_t>(i));
    return {};
  }

  // Rows go to the ranks that hold the other experts; even parts must be even.
  void check_exchanges(std::size_t kind) {
    const Plan& plan = plan_of(kind);
    const RankGroup experts = ranks_of(ranks_.expert_ranks, kind);
    for (const auto& [key, list] : calls(kind)) {
      const RankGroup& over = kinds_.group(key.first, kind);
      const auto peers = static_cast<std::int64_t>(over.size());
      for (const Call& call : list) {
        const NodeCollective& c = plan.collectives[static_cast<std::size_t>(call.collective)];
        if (c.kind != CollectiveKind::all_to_all) continue;
        if (over != experts)
          fault({{kind, call.node}},
                fmt::format("{} is exchanged by {} ('{}'), but {} ('{}') hold different experts", plan.name_of(c.send),
                            ranks_text(over), key.first, ranks_text(experts), ranks_.expert_ranks));
        const bool counted = c.send_counts.valid();
        for (BufferId buffer : {counted ? c.send_counts : c.send, counted ? c.receive_counts : c.receive})
          if (const Shape& shape = plan.value_of(buffer).shape; shape.elements() % peers != 0)
            fault({{kind, call.node}}, fmt::format("{} {} cannot be cut into even parts for the {} ranks of '{}'",
                                                   plan.name_of(buffer), to_text(shape), peers, key.first));
      }
    }
  }

  // The k-th call of a communicator is the same on all its ranks: each is compared with the group's lowest kind.
  void compare_calls(std::size_t kind) {
    std::set<std::pair<std::string, Lane>> keys;
    for (const auto& [key, list] : calls(kind)) keys.insert(key);
    for (const auto& [name, groups] : ranks_.groups)
      for (const std::int32_t other : kinds_.kinds_in(name, kind))
        for (const auto& [key, list] : calls(static_cast<std::size_t>(other)))
          if (key.first == name) keys.insert(key);
    for (const auto& key : keys) {
      const auto lowest = static_cast<std::size_t>(kinds_.kinds_in(key.first, kind).front());
      const std::int32_t a = kinds_.class_index(lowest), b = kinds_.class_index(kind);
      if (a == b || !compared_.insert({key.first, key.second, a, b}).second) continue;
      compare(lowest, kind, key);
    }
  }

  void compare(std::size_t a, std::size_t b, const std::pair<std::string, Lane>& key) {
    static const std::vector<Call> none;
    const auto list_of = [&](std::size_t kind) -> const std::vector<Call>& {
      const auto at = calls(kind).find(key);
      return at == calls(kind).end() ? none : at->second;
    };
    const std::vector<Call>&x = list_of(a), &y = list_of(b);
    const std::string where = fmt::format("of group '{}' on lane {}, ranks {} and {} differ", key.first,
                                          name_of(key.second), kinds_.first_rank(a).value, kinds_.first_rank(b).value);
    // What follows the first difference differs because of it.
    for (std::size_t i = 0; i < std::min(x.size(), y.size()); ++i)
      if (const std::string what = difference(plan_of(a), x[i], plan_of(b), y[i]); !what.empty())
        return fault({{a, x[i].node}, {b, y[i].node}}, fmt::format("in call {} {}: {}", i, where, what));
    if (x.size() == y.size()) return;
    const bool first = x.size() > y.size();
    const std::size_t both = std::min(x.size(), y.size());
    fault({{first ? a : b, (first ? x : y)[both].node}},
          fmt::format("in the number of calls {}: {} and {}", where, x.size(), y.size()));
  }

  // In what two calls that meet do not match; empty: nothing.
  static std::string difference(const Plan& p, const Call& x, const Plan& q, const Call& y) {
    const NodeCollective &a = p.collectives[static_cast<std::size_t>(x.collective)],
                         &b = q.collectives[static_cast<std::size_t>(y.collective)];
    const Node &m = p.nodes[x.node.index()], &n = q.nodes[y.node.index()];
    if (a.kind != b.kind) return fmt::format("{} meets {}", name_of(a.kind), name_of(b.kind));
    if (m.phase != n.phase || m.micro_batch != n.micro_batch ||
        p.pieces[m.piece.index()].name != q.pieces[n.piece.index()].name)
      return "different nodes meet";
    if (p.value_of(a.send).name != q.value_of(b.send).name)
      return fmt::format("{} meets {}", p.name_of(a.send), q.name_of(b.send));
    const auto describe = [](const Plan& plan, BufferId buffer) {
      const ValueInfo& v = plan.value_of(buffer);
      return fmt::format("{} {} {}", plan.name_of(buffer), name_of(v.dtype), to_text(v.shape));
    };
    const ValueInfo &sent = p.value_of(a.send), &received = q.value_of(b.receive), &back = q.value_of(b.send),
                    &taken = p.value_of(a.receive);
    if (a.kind == CollectiveKind::all_reduce) {
      if (!(sent.shape == received.shape) || sent.dtype != received.dtype)
        return fmt::format("{} meets {}", describe(p, a.send), describe(q, b.receive));
      if (a.first_row != b.first_row) return fmt::format("sums begin with rows {} and {}", a.first_row, b.first_row);
      return {};
    }
    if (a.send_counts.valid() != b.receive_counts.valid()) return "one side has counts, the other even parts";
    // With counts, rows must be alike and there must be as many counts; else all of it.
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

  const RankPlans& ranks_;
  const RankKinds kinds_;
  std::vector<Calls> calls_;  // by class
  std::set<std::tuple<std::string, Lane, std::int32_t, std::int32_t>> compared_;
  std::vector<PlanFault> faults_;
  bool known_groups_ = true;
};

}  // namespace

std::map<std::string, std::vector<RankGroup>> groups_of(const Grid& grid) {
  std::map<std::string, std::vector<RankGroup>> groups;
  for (const char* axis : {"dp", "ep", "edp"}) groups[axis] = grid.groups({axis});
  return groups;
}

RankPlans same_on_all_ranks(const Grid& grid, const Plan& plan, const MemoryPlan& memory) {
  RankPlans ranks;
  ranks.classes = {{&plan, &memory}};
  ranks.class_of.assign(static_cast<std::size_t>(grid.size()), 0);
  ranks.groups = groups_of(grid);
  return ranks;
}

std::vector<PlanFault> check_ranks(const RankPlans& ranks) { return RankCheck(ranks).run(); }

void require_valid(const RankPlans& ranks) {
  const std::vector<PlanFault> faults = check_ranks(ranks);
  if (!faults.empty())
    throw_faults(fmt::format("the plan of {} ranks in {} classes", ranks.class_of.size(), ranks.classes.size()),
                 faults);
}

}  // namespace weft
