// Runs the plans of all kinds of ranks on paper, as the parallel executor would: a lane takes its nodes in order, a node
// starts when other lanes have passed what it waits for, and a collective ends when all ranks of its group have come.
// Whatever then stands still waits in a circle.
#include <set>

#include <fmt/format.h>

#include "weft/base/error.h"
#include "weft/plan/rank_kinds.h"

namespace weft {

namespace {

struct Schedule {  // of a class
  std::array<std::vector<std::int32_t>, lane_count> lanes;
  std::vector<LaneMarks> waits;
};

struct LaneState {
  std::size_t next = 0;         // of its nodes
  std::int32_t collective = 0;  // of that node
  bool called = false;          // that collective has been entered
};

struct Meeting {  // a communicator: the ranks of one group on one lane
  std::vector<std::int32_t> kinds;
  std::vector<std::int64_t> calls;  // entered so far, by member of `kinds`

  std::int64_t& calls_of(std::int32_t kind) {
    for (std::size_t i = 0; i < kinds.size(); ++i)
      if (kinds[i] == kind) return calls[i];
    WEFT_CHECK(false, "kind {} is not in its group", kind);
  }
};

class Rendezvous {
 public:
  Rendezvous(const RankPlans& ranks, const RankKinds& kinds) : kinds_(kinds) {
    for (const RankPlans::Class& c : ranks.classes) {
      Schedule& schedule = schedules_.emplace_back();
      schedule.waits = c.memory ? lane_waits(*c.plan, *c.memory) : lane_waits(*c.plan);
      for (std::size_t i = 0; i < c.plan->nodes.size(); ++i)
        schedule.lanes[static_cast<std::size_t>(c.plan->nodes[i].lane)].push_back(static_cast<std::int32_t>(i));
    }
    lanes_.resize(kinds.count());
    passed_.assign(kinds.count(), no_marks);
    meetings_.resize(kinds.count());
    std::map<std::pair<std::string, std::int32_t>, std::array<std::int32_t, lane_count>> known;
    for (std::size_t kind = 0; kind < kinds.count(); ++kind)
      for (const std::string& group : plan_of(kind).groups) {
        const std::vector<std::int32_t> members = kinds.kinds_in(group, kind);
        const auto [at, is_new] = known.try_emplace({group, members.front()});
        if (is_new)
          for (std::int32_t& index : at->second) {
            index = static_cast<std::int32_t>(all_meetings_.size());
            all_meetings_.push_back({members, std::vector<std::int64_t>(members.size(), 0)});
          }
        meetings_[kind].push_back(at->second);
      }
  }

  void run() {
    for (std::size_t kind = 0; kind < kinds_.count(); ++kind)
      for (std::size_t lane = 0; lane < lane_count; ++lane) work_.emplace_back(kind, lane);
    while (!work_.empty()) {
      const auto [kind, lane] = work_.back();
      work_.pop_back();
      advance(kind, lane);
    }
  }

  // Where everything stands still: a circle of waits, by rank and lane. Empty: everything has run.
  struct Wait {
    RankId rank;
    NodeId node;
    std::string what;
  };
  std::vector<Wait> circle() {
    for (std::size_t kind = 0; kind < kinds_.count(); ++kind)
      for (std::size_t lane = 0; lane < lane_count; ++lane)
        if (!finished(kind, lane)) return circle_from(kinds_.first_rank(kind), lane);
    return {};
  }

 private:
  const Plan& plan_of(std::size_t kind) const { return *kinds_.class_of(kind).plan; }
  const Schedule& schedule_of(std::size_t kind) const {
    return schedules_[static_cast<std::size_t>(kinds_.class_index(kind))];
  }
  bool finished(std::size_t kind, std::size_t lane) const {
    return lanes_[kind][lane].next == schedule_of(kind).lanes[lane].size();
  }
  std::int32_t next_node(std::size_t kind, std::size_t lane) const {
    return schedule_of(kind).lanes[lane][lanes_[kind][lane].next];
  }
  Meeting& meeting(std::size_t kind, std::size_t lane, const NodeCollective& c) {
    return all_meetings_[static_cast<std::size_t>(meetings_[kind][static_cast<std::size_t>(c.group)][lane])];
  }
  // A lane that the next node still waits for; -1: none.
  int blocking_lane(std::size_t kind, std::size_t lane) const {
    const LaneMarks& waits = schedule_of(kind).waits[static_cast<std::size_t>(next_node(kind, lane))];
    for (std::size_t other = 0; other < lane_count; ++other)
      if (waits[other] > passed_[kind][other]) return static_cast<int>(other);
    return -1;
  }
  // A kind that has not come to the collective yet; -1: none.
  std::int32_t missing_kind(std::size_t kind, std::size_t lane, const NodeCollective& c) {
    Meeting& m = meeting(kind, lane, c);
    const std::int64_t own = m.calls_of(static_cast<std::int32_t>(kind));
    for (std::size_t i = 0; i < m.kinds.size(); ++i)
      if (m.calls[i] < own) return m.kinds[i];
    return -1;
  }

  void advance(std::size_t kind, std::size_t lane) {
    LaneState& state = lanes_[kind][lane];
    while (!finished(kind, lane)) {
      const auto node = static_cast<std::size_t>(next_node(kind, lane));
      if (!state.called && state.collective == 0 && blocking_lane(kind, lane) >= 0) return;
      const auto collectives = plan_of(kind).collectives_of(plan_of(kind).nodes[node]);
      while (state.collective < static_cast<std::int32_t>(collectives.size())) {
        const NodeCollective& c = collectives[static_cast<std::size_t>(state.collective)];
        Meeting& m = meeting(kind, lane, c);
        if (!state.called) {
          ++m.calls_of(static_cast<std::int32_t>(kind));
          state.called = true;
          for (std::int32_t other : m.kinds)
            if (other != static_cast<std::int32_t>(kind)) work_.emplace_back(static_cast<std::size_t>(other), lane);
        }
        if (missing_kind(kind, lane, c) >= 0) return;
        state.called = false;
        ++state.collective;
      }
      state.collective = 0;
      ++state.next;
      passed_[kind][lane] = static_cast<std::int32_t>(node);
      for (std::size_t other = 0; other < lane_count; ++other)
        if (other != lane && !finished(kind, other) &&
            schedule_of(kind).waits[static_cast<std::size_t>(next_node(kind, other))][lane] ==
                static_cast<std::int32_t>(node))
          work_.emplace_back(kind, other);
    }
  }

  std::vector<Wait> circle_from(RankId rank, std::size_t lane) {
    std::map<std::pair<RankId, std::size_t>, std::size_t> seen;
    std::vector<Wait> path;
    while (true) {
      const auto kind = static_cast<std::size_t>(kinds_.kind_of(rank));
      const auto [at, is_new] = seen.try_emplace({rank, lane}, path.size());
      if (!is_new) {
        path.erase(path.begin(), path.begin() + static_cast<std::ptrdiff_t>(at->second));
        return path;
      }
      if (finished(kind, lane)) return path;
      const Plan& plan = plan_of(kind);
      const NodeId node(next_node(kind, lane));
      const LaneState& state = lanes_[kind][lane];
      if (!state.called) {
        const auto other = static_cast<std::size_t>(blocking_lane(kind, lane));
        const auto mark = static_cast<std::size_t>(schedule_of(kind).waits[node.index()][other]);
        path.push_back({rank, node, fmt::format("waits for {}, node {}", plan.name_of(plan.nodes[mark]), mark)});
        lane = other;
        continue;
      }
      const NodeCollective& c =
          plan.collectives_of(plan.nodes[node.index()])[static_cast<std::size_t>(state.collective)];
      const std::string& group = plan.groups[static_cast<std::size_t>(c.group)];
      const std::int32_t missing = missing_kind(kind, lane, c);
      for (RankId other : kinds_.group_of(group, rank))
        if (kinds_.kind_of(other) == missing) {
          path.push_back({rank, node,
                          fmt::format("waits in {} of {} over '{}' for rank {}", name_of(c.kind), plan.name_of(c.send),
                                      group, other.value)});
          rank = other;
          break;
        }
    }
  }

  const RankKinds& kinds_;
  std::vector<Schedule> schedules_;                       // by class
  std::vector<std::array<LaneState, lane_count>> lanes_;  // by kind
  std::vector<LaneMarks> passed_;                         // by kind: last node that each lane has done
  std::vector<std::vector<std::array<std::int32_t, lane_count>>> meetings_;  // by kind, group of its plan, lane
  std::vector<Meeting> all_meetings_;
  std::vector<std::pair<std::size_t, std::size_t>> work_;  // kinds and lanes that may go on
};

}  // namespace

void check_rendezvous(const RankPlans& ranks, const RankKinds& kinds, std::vector<PlanFault>& faults) {
  Rendezvous rendezvous(ranks, kinds);
  rendezvous.run();
  const auto circle = rendezvous.circle();
  if (circle.empty()) return;
  PlanFault fault;
  fault.message = "ranks and lanes wait for each other, and none can go on";
  for (const auto& wait : circle) {
    const Plan& plan = *kinds.class_of(static_cast<std::size_t>(kinds.kind_of(wait.rank))).plan;
    fault.message += fmt::format("\n    rank {}, node {}: {} {}", wait.rank.value, wait.node.value,
                                 plan.name_of(plan.nodes[wait.node.index()]), wait.what);
    fault.nodes.push_back(wait.node);
    fault.ranks.push_back(wait.rank);
  }
  faults.push_back(std::move(fault));
}

}  // namespace weft
