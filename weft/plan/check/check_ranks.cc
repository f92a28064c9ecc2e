#include "weft/plan/check/check_ranks.h"

#include <algorithm>
#include <map>
#include <set>

#include <fmt/format.h>

#include "weft/base/error.h"
#include "weft/plan/check/calls.h"
#include "weft/plan/check/check_norm.h"
#include "weft/plan/check/check_rendezvous.h"
#include "weft/plan/rank_classes.h"

namespace weft {

namespace {

class RankCheck {
 public:
  explicit RankCheck(const RankPlans& ranks) : ranks_(ranks), classes_(ranks) {}

  std::vector<PlanFault> run() {
    for (std::size_t plan = 0; plan < ranks_.plans.size(); ++plan) check_one(plan);
    if (!faults_.empty()) return std::move(faults_);  // ranks are compared once each is right by itself
    for (const RankPlans::Entry& entry : ranks_.plans) calls_.push_back(calls_of(*entry.plan));
    for (std::size_t c = 0; c < classes_.count(); ++c) check_groups(c);
    if (!faults_.empty()) return std::move(faults_);
    for (std::size_t c = 0; c < classes_.count(); ++c) {
      check_reductions(c);
      check_norm_groups(classes_, c, faults_);
      check_sizes(c);
      compare_calls(c);
      compare_transfers(c);
    }
    if (faults_.empty()) check_rendezvous(ranks_, classes_, faults_);
    return std::move(faults_);
  }

 private:
  const Plan& plan_of(std::size_t c) const { return *classes_.plan_of(c).plan; }
  const Calls& calls(std::size_t c) const { return calls_[static_cast<std::size_t>(classes_.plan_index(c))]; }

  void check_one(std::size_t index) {
    std::vector<RankId> own;
    for (std::size_t r = 0; r < ranks_.plan_of.size(); ++r)
      if (ranks_.plan_of[r] == static_cast<std::int32_t>(index)) own.push_back(RankId(static_cast<std::int64_t>(r)));
    if (own.empty()) return;
    const RankPlans::Entry& entry = ranks_.plans[index];
    std::vector<PlanFault> found = check_plan(*entry.plan, ranks_text(own));
    if (found.empty() && entry.memory) found = check_memory(*entry.plan, *entry.memory, ranks_text(own));
    for (PlanFault& fault : found) {
      fault.ranks.assign(fault.nodes.size(), own.front());
      faults_.push_back(std::move(fault));
    }
  }

  struct At {
    std::size_t rank_class;
    NodeId node;
  };
  void fault(std::initializer_list<At> places, std::string message) {
    PlanFault found;
    for (const At& at : places) {
      if (!at.node.valid()) continue;
      const Plan& plan = plan_of(at.rank_class);
      const RankId rank = classes_.first_rank(at.rank_class);
      message += fmt::format("\n    rank {}, node {}: {}", rank.value, at.node.value,
                             plan.name_of(plan.nodes[at.node.index()]));
      found.nodes.push_back(at.node);
      found.ranks.push_back(rank);
    }
    found.message = std::move(message);
    faults_.push_back(std::move(found));
  }

  void check_groups(std::size_t c) {
    for (const auto& [key, list] : calls(c))
      if (!classes_.has_group(key.group, c))
        fault({{c, list.front().node}},
              fmt::format("communicates over '{}', but this rank is in no such group", plan_of(c).name_of(key.group)));
  }

  // Every gradient must be summed over exactly the ranks that hold its parameter, or divide it. check_plan has already
  // checked that it is summed over the group that its value names.
  void check_reductions(std::size_t c) {
    const Plan& plan = plan_of(c);
    if (plan.kind != PlanKind::train) return;
    std::map<std::pair<TensorId, int>, GroupId> divided;  // over which ranks, by division
    for (const ValueInfo& value : plan.values)
      if (value.storage == StorageClass::gathered) divided[{value.tensor, value.part}] = value.exchanged_over;
    for (std::size_t i = 0; i < plan.buffers.size(); ++i) {
      const BufferId buffer(static_cast<std::int64_t>(i));
      const ValueInfo& value = plan.value_of(buffer);
      if (value.storage != StorageClass::gradient && value.storage != StorageClass::partial) continue;
      const RankGroup holders = ranks_of(value.replicas, c);
      if (const auto at = divided.find({value.tensor, value.part});
          value.storage == StorageClass::partial && at != divided.end())
        if (const RankGroup parts = ranks_of(at->second, c); parts != holders)
          fault({{c, last_writer(plan, buffer)}},
                fmt::format("{} is summed over {} ('{}'), but {} ('{}') divide its parameter", plan.name_of(buffer),
                            ranks_text(holders), value.replicas.valid() ? plan.name_of(value.replicas) : "",
                            ranks_text(parts), plan.name_of(at->second)));
      if (!value.summed_over.valid()) {
        if (holders.size() > 1)
          fault({{c, last_writer(plan, buffer)}},
                fmt::format("{} is not summed over '{}': {} hold its parameter", plan.name_of(buffer),
                            plan.name_of(value.replicas), ranks_text(holders)));
      } else if (const RankGroup over = ranks_of(value.summed_over, c); over != holders) {
        fault({{c, last_writer(plan, buffer)}},
              fmt::format("{} is summed over {} ('{}'), but {}{} hold its parameter", plan.name_of(buffer),
                          ranks_text(over), plan.name_of(value.summed_over), ranks_text(holders),
                          value.replicas.valid() ? fmt::format(" ('{}')", plan.name_of(value.replicas)) : ""));
      }
    }
  }
  // The group of that id; only the rank itself if there is none.
  RankGroup ranks_of(GroupId group, std::size_t c) const {
    return group.valid() && classes_.has_group(group, c) ? classes_.group(group, c) : RankGroup{classes_.first_rank(c)};
  }
  static NodeId last_writer(const Plan& plan, BufferId buffer) {
    for (std::size_t i = plan.nodes.size(); i-- > 0;)
      for (const BufferUse& use : plan.uses_of(plan.nodes[i]))
        if (use.buffer == buffer && use.access != Access::read) return NodeId(static_cast<std::int64_t>(i));
    return {};
  }

  // What is cut into parts for the ranks of a group must fit their number; peers must be ranks of the group.
  void check_sizes(std::size_t c) {
    const Plan& plan = plan_of(c);
    for (const auto& [key, list] : calls(c)) {
      const auto peers = static_cast<std::int64_t>(classes_.group(key.group, c).size());
      for (const Call& call : list) {
        const NodeCollective& made = plan.collectives[static_cast<std::size_t>(call.collective)];
        const auto even = [&](BufferId buffer) {
          if (const Shape& shape = plan.value_of(buffer).shape; shape.elements() % peers != 0)
            fault({{c, call.node}}, fmt::format("{} {} cannot be cut into equal parts for the {} ranks of '{}'",
                                                plan.name_of(buffer), to_text(shape), peers, plan.name_of(key.group)));
        };
        const auto parts = [&](BufferId part, BufferId whole) {
          const std::int64_t one = elements_of(plan.value_of(part)), all = elements_of(plan.value_of(whole));
          if (one * peers != all)
            fault({{c, call.node}},
                  fmt::format("{} {} is not {} parts like {} {}, one for each rank of '{}'", plan.name_of(whole),
                              to_text(plan.value_of(whole).shape), peers, plan.name_of(part),
                              to_text(plan.value_of(part).shape), plan.name_of(key.group)));
        };
        if (made.kind == CollectiveKind::all_to_all) {
          const bool counted = made.send_counts.valid();
          even(counted ? made.send_counts : made.send);
          even(counted ? made.receive_counts : made.receive);
        }
        if (made.kind == CollectiveKind::all_gather) parts(made.send, made.receive);
        if (made.kind == CollectiveKind::reduce_scatter) parts(made.receive, made.send);
        if (made.peer >= peers)
          fault({{c, call.node}},
                fmt::format("peer {} is not one of the {} ranks of '{}'", made.peer, peers, plan.name_of(key.group)));
      }
    }
  }

  // The k-th call of a communicator must be the same on all its ranks: each is compared with the group's lowest class.
  void compare_calls(std::size_t c) {
    std::set<CallKey> keys;
    for (const auto& [key, list] : calls(c)) keys.insert(key);
    for (std::size_t id = 0; id < ranks_.groups.size(); ++id) {
      const GroupId group(static_cast<std::int64_t>(id));
      if (!classes_.has_group(group, c)) continue;
      for (const std::int32_t other : classes_.classes_in(group, c))
        for (const auto& [key, list] : calls(static_cast<std::size_t>(other)))
          if (key.group == group) keys.insert(key);
    }
    for (const CallKey& key : keys) {
      const auto lowest = static_cast<std::size_t>(classes_.classes_in(key.group, c).front());
      const std::int32_t a = classes_.plan_index(lowest), b = classes_.plan_index(c);
      if (a == b || !compared_.insert({key, a, b}).second) continue;
      compare(lowest, c, key);
    }
  }

  // All calls but transfers, which are compared in pairs.
  std::vector<Call> joint_calls(std::size_t c, const CallKey& key) const {
    std::vector<Call> found;
    const auto at = calls(c).find(key);
    if (at == calls(c).end()) return found;
    for (const Call& call : at->second)
      if (!is_transfer(plan_of(c).collectives[static_cast<std::size_t>(call.collective)].kind)) found.push_back(call);
    return found;
  }

  void compare(std::size_t a, std::size_t b, const CallKey& key) {
    const std::vector<Call> x = joint_calls(a, key), y = joint_calls(b, key);
    const std::string where =
        fmt::format("of group '{}' on lane {}, ranks {} and {} differ", plan_of(a).name_of(key.group),
                    name_of(key.lane), classes_.first_rank(a).value, classes_.first_rank(b).value);
    // Calls after the first difference would differ because of it.
    for (std::size_t i = 0; i < std::min(x.size(), y.size()); ++i)
      if (const std::string what = difference(plan_of(a), x[i], plan_of(b), y[i]); !what.empty())
        return fault({{a, x[i].node}, {b, y[i].node}}, fmt::format("in call {} {}: {}", i, where, what));
    if (x.size() == y.size()) return;
    const bool first = x.size() > y.size();
    const std::size_t both = std::min(x.size(), y.size());
    fault({{first ? a : b, (first ? x : y)[both].node}},
          fmt::format("in the number of calls {}: {} and {}", where, x.size(), y.size()));
  }

  // Compares the sends of this class's first rank to every peer with that peer's receives, and the other way round.
  void compare_transfers(std::size_t c) {
    for (const auto& [key, list] : calls(c)) {
      const RankGroup& members = classes_.group(key.group, c);
      const RankId own = classes_.first_rank(c);
      const auto here = static_cast<std::int32_t>(std::find(members.begin(), members.end(), own) - members.begin());
      std::set<std::int32_t> peers;
      for (const Call& call : list)
        if (const NodeCollective& made = plan_of(c).collectives[static_cast<std::size_t>(call.collective)];
            is_transfer(made.kind))
          peers.insert(made.peer);
      for (const std::int32_t peer : peers) {
        const auto other = static_cast<std::size_t>(classes_.class_of(members[static_cast<std::size_t>(peer)]));
        if (paired_.insert({key, c, other}).second)
          pair_up(c, transfers(c, key, CollectiveKind::send, peer), other,
                  transfers(other, key, CollectiveKind::receive, here));
        if (paired_.insert({key, other, c}).second)
          pair_up(other, transfers(other, key, CollectiveKind::send, here), c,
                  transfers(c, key, CollectiveKind::receive, peer));
      }
    }
  }
  std::vector<Call> transfers(std::size_t c, const CallKey& key, CollectiveKind kind, std::int32_t peer) const {
    std::vector<Call> found;
    const auto at = calls(c).find(key);
    if (at == calls(c).end()) return found;
    for (const Call& call : at->second)
      if (const NodeCollective& made = plan_of(c).collectives[static_cast<std::size_t>(call.collective)];
          made.kind == kind && made.peer == peer)
        found.push_back(call);
    return found;
  }
  void pair_up(std::size_t from, const std::vector<Call>& sends, std::size_t to, const std::vector<Call>& receives) {
    const Plan &p = plan_of(from), &q = plan_of(to);
    for (std::size_t i = 0; i < std::max(sends.size(), receives.size()); ++i) {
      if (i >= receives.size())
        return fault({{from, sends[i].node}},
                     fmt::format("rank {} has no receive for what is sent here", classes_.first_rank(to).value));
      if (i >= sends.size())
        return fault({{to, receives[i].node}},
                     fmt::format("rank {} has no send for what is received here", classes_.first_rank(from).value));
      const NodeCollective &a = p.collectives[static_cast<std::size_t>(sends[i].collective)],
                           &b = q.collectives[static_cast<std::size_t>(receives[i].collective)];
      const ValueInfo &sent = p.value_of(a.send), &received = q.value_of(b.receive);
      if (a.match != b.match)
        return fault({{from, sends[i].node}, {to, receives[i].node}},
                     fmt::format("a send with match {} meets a receive with match {}", a.match.value, b.match.value));
      if (!(sent.shape == received.shape) || sent.dtype != received.dtype)
        return fault(
            {{from, sends[i].node}, {to, receives[i].node}},
            fmt::format("{} {} {} is sent to {} {} {}", p.name_of(a.send), name_of(sent.dtype), to_text(sent.shape),
                        q.name_of(b.receive), name_of(received.dtype), to_text(received.shape)));
    }
  }

  const RankPlans& ranks_;
  const RankClasses classes_;
  std::vector<Calls> calls_;                                            // by plan
  std::set<std::tuple<CallKey, std::int32_t, std::int32_t>> compared_;  // by plans
  std::set<std::tuple<CallKey, std::size_t, std::size_t>> paired_;      // by classes: sender, receiver
  std::vector<PlanFault> faults_;
};

}  // namespace

std::vector<PlanFault> check_ranks(const RankPlans& ranks) { return RankCheck(ranks).run(); }

void require_valid(const RankPlans& ranks) {
  const std::vector<PlanFault> faults = check_ranks(ranks);
  if (!faults.empty())
    throw_faults(fmt::format("the plan of {} ranks ({} distinct)", ranks.plan_of.size(), ranks.plans.size()), faults);
}

}  // namespace weft
