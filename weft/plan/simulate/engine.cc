#include "weft/plan/simulate/engine.h"

#include <algorithm>
#include <map>
#include <tuple>

#include <fmt/format.h>

#include "weft/base/error.h"

namespace weft {

namespace {

// A plan by lane; shared by the classes that run it.
struct Schedule {
  struct Port {  // one direction between a rank and a peer, on one lane
    GroupId group;
    std::int32_t lane = 0, peer = 0;
    bool sends = false;
    auto operator<=>(const Port&) const = default;
  };

  explicit Schedule(const RankPlans::Entry& entry)
      : plan(entry.plan),
        waits(entry.memory != nullptr ? lane_waits(*entry.plan, *entry.memory) : lane_waits_by_use(*entry.plan)) {
    for (const Node& node : plan->nodes) ++lane_begin[static_cast<std::size_t>(node.lane) + 1];
    for (std::size_t lane = 0; lane < lane_count; ++lane) lane_begin[lane + 1] += lane_begin[lane];
    std::array<std::int32_t, lane_count + 1> at = lane_begin;
    nodes.resize(plan->nodes.size());
    std::map<Port, std::int32_t> known;
    for (std::size_t i = 0; i < plan->nodes.size(); ++i) {
      const Node& node = plan->nodes[i];
      nodes[static_cast<std::size_t>(at[static_cast<std::size_t>(node.lane)]++)] = static_cast<std::int32_t>(i);
      for (std::int32_t c = node.first_collective; c < node.first_collective + node.collectives; ++c) {
        const NodeCollective& made = plan->collectives[static_cast<std::size_t>(c)];
        if (!is_transfer(made.kind)) continue;
        if (port_of.empty()) port_of.resize(plan->collectives.size(), -1);
        const Port port{made.group, static_cast<std::int32_t>(meeting_lane(node.lane)), made.peer,
                        made.kind == CollectiveKind::send};
        const auto [found, is_new] = known.try_emplace(port, static_cast<std::int32_t>(ports.size()));
        if (is_new) ports.push_back(port);
        port_of[static_cast<std::size_t>(c)] = found->second;
      }
    }
  }

  const Plan* plan;
  std::vector<LaneMarks> waits;  // by node
  std::array<std::int32_t, lane_count + 1> lane_begin{};
  std::vector<std::int32_t> nodes;  // lane by lane
  std::vector<Port> ports;
  std::vector<std::int32_t> port_of;  // by collective; -1: not a transfer; empty: there are none
};

struct LaneState {
  std::int32_t next = 0;        // in Schedule::nodes
  std::int32_t collective = 0;  // of that node
  std::int32_t open = 0;        // calls and transfers that were entered and have not ended
  std::int32_t posted = 0;      // collectives that were entered together; 0: none
  bool begun = false;           // the node no longer waits for other lanes
  double time = 0;              // that the lane has reached
  double until = 0;             // the latest end of what was posted
};

// A communicator: the ranks of one group on one lane.
struct Meeting {
  std::vector<std::int32_t> classes;
  std::vector<bool> here;          // by member of `classes`: has reached this call
  std::size_t missing = 0;         // how many have not
  std::int32_t places = 0;         // index of the places of its groups
  double latest = 0, seconds = 0;  // of this call
};

// One direction between two ranks on one lane. Either sends wait for their receives or receives for their sends.
struct Channel {
  struct Post {
    std::int32_t rank_class, lane, collective;
    double time, bytes;
  };
  std::vector<Post> posts;
  std::size_t first = 0;                 // post that still waits
  bool sends = false;                    // whether sends wait
  bool within = false, between = false;  // where the pairs of ranks are
  std::size_t waiting() const { return posts.size() - first; }
};

class Engine {
 public:
  Engine(const RankPlans& ranks, const RankClasses& classes, const Cluster* cluster)
      : ranks_(ranks), classes_(classes), cluster_(cluster) {
    for (const RankPlans::Entry& entry : ranks.plans) schedules_.emplace_back(entry);
    lanes_.resize(classes.count());
    passed_.assign(classes.count(), no_marks);
    for (std::size_t own = 0; own < classes.count(); ++own)
      for (std::size_t lane = 0; lane < lane_count; ++lane) lanes_[own][lane].next = schedule_of(own).lane_begin[lane];
    make_meetings();
    make_channels();
    if (cluster_) {
      out_.classes.resize(classes.count());
      for (std::size_t own = 0; own < classes.count(); ++own) {
        out_.classes[own].start.resize(plan_of(own).nodes.size());
        out_.classes[own].end.resize(plan_of(own).nodes.size());
      }
    }
  }

  Simulation run() {
    for (std::size_t own = 0; own < classes_.count(); ++own)
      for (std::size_t lane = 0; lane < lane_count; ++lane) work_.emplace_back(own, lane);
    while (!work_.empty()) {
      const auto [own, lane] = work_.back();
      work_.pop_back();
      advance(own, lane);
    }
    out_.stuck = cycle();
    return std::move(out_);
  }

 private:
  const Schedule& schedule_of(std::size_t own) const {
    return schedules_[static_cast<std::size_t>(classes_.plan_index(own))];
  }
  const Plan& plan_of(std::size_t own) const { return *schedule_of(own).plan; }
  bool finished(std::size_t own, std::size_t lane) const {
    return lanes_[own][lane].next == schedule_of(own).lane_begin[lane + 1];
  }
  std::int32_t next_node(std::size_t own, std::size_t lane) const {
    return schedule_of(own).nodes[static_cast<std::size_t>(lanes_[own][lane].next)];
  }

  // One per lane for the classes that share groups of an id; and the places of these groups.
  void make_meetings() {
    std::map<std::pair<GroupId, std::int32_t>, std::array<std::int32_t, lane_count>> known;  // by lowest class
    meetings_of_.resize(classes_.count());
    for (std::size_t own = 0; own < classes_.count(); ++own)
      for (std::size_t id = 0; id < plan_of(own).groups.size(); ++id) {
        const GroupId group(static_cast<std::int64_t>(id));
        if (!classes_.has_group(group, own)) {
          meetings_of_[own].emplace_back();
          continue;
        }
        const std::vector<std::int32_t> members = classes_.classes_in(group, own);
        const auto [at, is_new] = known.try_emplace({group, members.front()});
        if (is_new) {
          for (std::int32_t& index : at->second) {
            index = static_cast<std::int32_t>(meetings_.size());
            meetings_.push_back({members, std::vector<bool>(members.size()), members.size(),
                                 static_cast<std::int32_t>(places_.size())});
          }
          places_.emplace_back();
        }
        meetings_of_[own].push_back(at->second);
      }
    if (!cluster_) return;
    for (std::size_t id = 0; id < ranks_.groups.size(); ++id)
      for (const RankGroup& group : ranks_.groups[id]) {
        std::int32_t lowest = classes_.class_of(group.front());
        for (RankId rank : group) lowest = std::min(lowest, classes_.class_of(rank));
        const auto at = known.find({GroupId(static_cast<std::int64_t>(id)), lowest});
        if (at == known.end()) continue;  // no plan names it
        std::vector<GroupPlace>& places =
            places_[static_cast<std::size_t>(meetings_[static_cast<std::size_t>(at->second.front())].places)];
        const GroupPlace place = place_of(group, *cluster_);
        if (std::find(places.begin(), places.end(), place) == places.end()) places.push_back(place);
      }
  }

  // A class has one position in the groups where it has transfers, and each of its peers there is of one class.
  void make_channels() {
    using Key = std::tuple<GroupId, std::int32_t, std::int32_t, std::int32_t, std::int32_t, std::int32_t>;
    std::map<Key, std::int32_t> known;
    channels_of_.resize(classes_.count());
    for (std::size_t own = 0; own < classes_.count(); ++own)
      for (const Schedule::Port& port : schedule_of(own).ports) {
        const RankGroup& members = classes_.group(port.group, own);
        WEFT_CHECK(static_cast<std::size_t>(port.peer) < members.size(), "peer {} of {} ranks", port.peer,
                   members.size());
        const auto here = static_cast<std::int32_t>(
            std::find(members.begin(), members.end(), classes_.first_rank(own)) - members.begin());
        const std::int32_t self = static_cast<std::int32_t>(own),
                           other = classes_.class_of(members[static_cast<std::size_t>(port.peer)]);
        const Key key = port.sends ? Key{port.group, port.lane, self, here, other, port.peer}
                                   : Key{port.group, port.lane, other, port.peer, self, here};
        const auto [at, is_new] = known.try_emplace(key, static_cast<std::int32_t>(channels_.size()));
        if (is_new) channels_.emplace_back();
        channels_of_[own].push_back(at->second);
      }
    if (!cluster_ || channels_.empty()) return;
    for (std::size_t r = 0; r < ranks_.plan_of.size(); ++r) {
      const RankId rank(static_cast<std::int64_t>(r));
      const auto own = static_cast<std::size_t>(classes_.class_of(rank));
      const std::vector<Schedule::Port>& ports = schedule_of(own).ports;
      for (std::size_t p = 0; p < ports.size(); ++p) {
        const RankId peer = classes_.group_of(ports[p].group, rank)[static_cast<std::size_t>(ports[p].peer)];
        Channel& channel = channels_[static_cast<std::size_t>(channels_of_[own][p])];
        (cluster_->machine_of(rank) == cluster_->machine_of(peer) ? channel.within : channel.between) = true;
      }
    }
  }

  Meeting& meeting(std::size_t own, std::size_t lane, const NodeCollective& c) {
    return meetings_[static_cast<std::size_t>(meetings_of_[own][c.group.index()][lane])];
  }
  Channel& channel(std::size_t own, std::int32_t collective) {
    const std::int32_t port = schedule_of(own).port_of[static_cast<std::size_t>(collective)];
    return channels_[static_cast<std::size_t>(channels_of_[own][static_cast<std::size_t>(port)])];
  }

  // A lane that the next node is waiting for; -1: none.
  int blocking_lane(std::size_t own, std::size_t lane) const {
    const LaneMarks& waits = schedule_of(own).waits[static_cast<std::size_t>(next_node(own, lane))];
    for (std::size_t other = 0; other < lane_count; ++other)
      if (waits[other] > passed_[own][other]) return static_cast<int>(other);
    return -1;
  }

  void advance(std::size_t own, std::size_t lane) {
    const Schedule& schedule = schedule_of(own);
    LaneState& state = lanes_[own][lane];
    while (state.next < schedule.lane_begin[lane + 1]) {
      const auto index = static_cast<std::size_t>(schedule.nodes[static_cast<std::size_t>(state.next)]);
      const Node& node = schedule.plan->nodes[index];
      if (!state.begun) {
        if (blocking_lane(own, lane) >= 0) return;
        begin(own, index, node, schedule.waits[index], state);
      }
      while (state.collective < node.collectives) {
        if (state.posted == 0) enter(own, lane, node, state);
        if (state.open > 0) return;
        state.collective += state.posted;
        state.posted = 0;
        state.time = state.until;
      }
      end(own, lane, index, state);
    }
  }

  void begin(std::size_t own, std::size_t index, const Node& node, const LaneMarks& waits, LaneState& state) {
    state.begun = true;
    if (!cluster_) return;
    ClassTimes& times = out_.classes[own];
    for (std::int32_t mark : waits)
      if (mark >= 0) state.time = std::max(state.time, times.end[static_cast<std::size_t>(mark)]);
    times.start[index] = state.time;
    state.time += cluster_->node_overhead;
    if (node.collectives == 0) state.time += seconds_of(node, *cluster_);
  }

  void end(std::size_t own, std::size_t lane, std::size_t index, LaneState& state) {
    if (cluster_) {
      ClassTimes& times = out_.classes[own];
      times.end[index] = state.time;
      times.busy[lane] += state.time - times.start[index];
      out_.seconds = std::max(out_.seconds, state.time);
    }
    state.begun = false;
    state.collective = 0;
    ++state.next;
    const auto done = static_cast<std::int32_t>(index);
    passed_[own][lane] = done;
    for (std::size_t other = 0; other < lane_count; ++other)
      if (other != lane && !finished(own, other) && !lanes_[own][other].begun &&
          schedule_of(own).waits[static_cast<std::size_t>(next_node(own, other))][lane] == done)
        work_.emplace_back(own, other);
  }

  // Enters the next call of the node, or all consecutive transfers over one group.
  void enter(std::size_t own, std::size_t lane, const Node& node, LaneState& state) {
    const auto collectives = schedule_of(own).plan->collectives_of(node);
    const NodeCollective& first = collectives[static_cast<std::size_t>(state.collective)];
    state.until = state.time;
    if (!is_transfer(first.kind)) {
      state.posted = state.open = 1;
      return join(own, lane, first, state.time);
    }
    for (std::size_t c = static_cast<std::size_t>(state.collective);
         c < collectives.size() && is_transfer(collectives[c].kind) && collectives[c].group == first.group; ++c) {
      ++state.posted;
      ++state.open;
      post(own, lane, node.first_collective + static_cast<std::int32_t>(c), state.time);
    }
  }

  void join(std::size_t own, std::size_t lane, const NodeCollective& c, double time) {
    Meeting& m = meeting(own, lane, c);
    const auto member = static_cast<std::size_t>(
        std::lower_bound(m.classes.begin(), m.classes.end(), static_cast<std::int32_t>(own)) - m.classes.begin());
    m.here[member] = true;
    m.latest = std::max(m.latest, time);
    if (cluster_)
      for (const GroupPlace& place : places_[static_cast<std::size_t>(m.places)])
        m.seconds = std::max(m.seconds, seconds_of(c, place, *cluster_));
    if (--m.missing > 0) return;
    const double end = m.latest + m.seconds;
    m.here.assign(m.classes.size(), false);
    m.missing = m.classes.size();
    m.latest = m.seconds = 0;
    for (std::int32_t other : m.classes)
      close(static_cast<std::size_t>(other), lane, static_cast<std::size_t>(other) == own, end);
  }

  void post(std::size_t own, std::size_t lane, std::int32_t collective, double time) {
    const NodeCollective& c = plan_of(own).collectives[static_cast<std::size_t>(collective)];
    const bool sends = c.kind == CollectiveKind::send;
    const auto bytes = static_cast<double>(c.bytes);
    Channel& ch = channel(own, collective);
    if (ch.waiting() == 0 || ch.sends == sends) {
      if (ch.waiting() == 0) {
        ch.posts.clear();
        ch.first = 0;
      }
      ch.sends = sends;
      ch.posts.push_back({static_cast<std::int32_t>(own), static_cast<std::int32_t>(lane), collective, time, bytes});
      return;
    }
    const Channel::Post other = ch.posts[ch.first++];
    double end = std::max(time, other.time);
    if (cluster_) {
      const double size = std::max(bytes, other.bytes);  // a receive may not name it
      end += std::max(ch.within ? transfer_seconds(size, cluster_->within) : 0,
                      ch.between ? transfer_seconds(size, cluster_->between) : 0);
    }
    close(own, lane, true, end);
    close(static_cast<std::size_t>(other.rank_class), static_cast<std::size_t>(other.lane), false, end);
  }

  // Something that the class has entered on that lane ends. advancing: it is what is being advanced.
  void close(std::size_t rank_class, std::size_t lane, bool advancing, double end) {
    LaneState& state = lanes_[rank_class][lane];
    state.until = std::max(state.until, end);
    if (--state.open == 0 && !advancing) work_.emplace_back(rank_class, lane);
  }

  std::vector<RankWait> cycle() {
    for (std::size_t own = 0; own < classes_.count(); ++own)
      for (std::size_t lane = 0; lane < lane_count; ++lane)
        if (!finished(own, lane)) return cycle_from(classes_.first_rank(own), lane);
    return {};
  }

  std::vector<RankWait> cycle_from(RankId rank, std::size_t lane) {
    std::map<std::pair<RankId, std::size_t>, std::size_t> seen;
    std::vector<RankWait> path;
    while (true) {
      const auto own = static_cast<std::size_t>(classes_.class_of(rank));
      const auto [at, is_new] = seen.try_emplace({rank, lane}, path.size());
      if (!is_new) {
        path.erase(path.begin(), path.begin() + static_cast<std::ptrdiff_t>(at->second));
        return path;
      }
      if (finished(own, lane)) return path;
      const Plan& plan = plan_of(own);
      const NodeId node(next_node(own, lane));
      if (!lanes_[own][lane].begun) {
        const auto other = static_cast<std::size_t>(blocking_lane(own, lane));
        const auto mark = static_cast<std::size_t>(schedule_of(own).waits[node.index()][other]);
        path.push_back({rank, node, fmt::format("waits for {}, node {}", plan.name_of(plan.nodes[mark]), mark)});
        lane = other;
        continue;
      }
      const auto [collective, other] = missing_rank(rank, own, lane, plan.nodes[node.index()]);
      const NodeCollective& c = plan.collectives[static_cast<std::size_t>(collective)];
      const BufferId buffer = c.send.valid() ? c.send : c.receive;
      path.push_back(
          {rank, node,
           fmt::format("waits in {}{} over '{}' for rank {}", name_of(c.kind),
                       buffer.valid() ? " of " + plan.name_of(buffer) : "", plan.name_of(c.group), other.value)});
      if (is_transfer(c.kind)) lane = other_side(static_cast<std::size_t>(classes_.class_of(other)), lane, c);
      rank = other;
    }
  }

  // The lane of another class on which the other side of a transfer is, or was to be.
  std::size_t other_side(std::size_t own, std::size_t lane, const NodeCollective& c) const {
    const Schedule& schedule = schedule_of(own);
    for (std::size_t there = 0; there < lane_count; ++there) {
      if (meeting_lane(static_cast<Lane>(there)) != meeting_lane(static_cast<Lane>(lane))) continue;
      for (std::int32_t n = lanes_[own][there].next; n < schedule.lane_begin[there + 1]; ++n)
        for (const NodeCollective& made : schedule.plan->collectives_of(
                 schedule.plan->nodes[static_cast<std::size_t>(schedule.nodes[static_cast<std::size_t>(n)])]))
          if (is_transfer(made.kind) && made.kind != c.kind && made.match == c.match) return there;
    }
    return lane;
  }

  // The collective that a node is waiting in, and a rank that has not reached it.
  std::pair<std::int32_t, RankId> missing_rank(RankId rank, std::size_t own, std::size_t lane, const Node& node) {
    const LaneState& state = lanes_[own][lane];
    const std::int32_t first = node.first_collective + state.collective;
    for (std::int32_t i = first; i < first + state.posted; ++i) {
      const NodeCollective& c = plan_of(own).collectives[static_cast<std::size_t>(i)];
      const RankGroup& members = classes_.group_of(c.group, rank);
      if (is_transfer(c.kind)) {
        const Channel& ch = channel(own, i);
        if (ch.waiting() == 0 || ch.sends != (c.kind == CollectiveKind::send)) continue;
        return {ch.posts[ch.first].collective, members[static_cast<std::size_t>(c.peer)]};
      }
      const Meeting& m = meeting(own, lane, c);
      for (std::size_t k = 0; k < m.classes.size(); ++k)
        if (!m.here[k])
          for (RankId other : members)
            if (classes_.class_of(other) == m.classes[k]) return {i, other};
    }
    WEFT_CHECK(false, "{} is stuck but waits for no rank", plan_of(own).name_of(node));
  }

  const RankPlans& ranks_;
  const RankClasses& classes_;
  const Cluster* cluster_;
  std::vector<Schedule> schedules_;                                             // by plan
  std::vector<std::array<LaneState, lane_count>> lanes_;                        // by class
  std::vector<LaneMarks> passed_;                                               // by class: what each lane has done
  std::vector<std::vector<std::array<std::int32_t, lane_count>>> meetings_of_;  // by class, group, lane
  std::vector<Meeting> meetings_;
  std::vector<std::vector<GroupPlace>> places_;
  std::vector<std::vector<std::int32_t>> channels_of_;  // by class, port of its plan
  std::vector<Channel> channels_;
  std::vector<std::pair<std::size_t, std::size_t>> work_;  // classes and lanes that may proceed
  Simulation out_;
};

}  // namespace

Simulation simulate(const RankPlans& ranks, const RankClasses& classes, const Cluster* cluster) {
  return Engine(ranks, classes, cluster).run();
}

}  // namespace weft
