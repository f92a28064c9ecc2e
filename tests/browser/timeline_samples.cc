#include "tests/browser/timeline_samples.h"

#include <algorithm>
#include <map>

#include <fmt/format.h>

#include "weft/base/error.h"

namespace weft {

namespace {

constexpr double us = 1e-6;

class Simulation {
 public:
  Simulation(Timeline& timeline, double noise) : timeline_(timeline), noise_(noise) {}

  // Nodes start in the order of their lane, after `needs`, and together with all others of their collective.
  int add(int rank, int label, int micro_batch, double duration, const std::vector<int>& needs, int collective = -1) {
    const int id = static_cast<int>(nodes_.size());
    nodes_.push_back({rank, label, micro_batch, duration * factor(rank, id), {}, collective});
    for (int need : needs)
      if (need >= 0) nodes_.back().needs.push_back(need);
    const Lane lane = timeline_.labels[static_cast<std::size_t>(label)].lane;
    queues_[{rank, static_cast<int>(lane)}].push_back(id);
    if (collective >= 0) members_[collective].push_back(id);
    return id;
  }

  void run() {
    done_.assign(nodes_.size(), -1);
    for (bool moved = true; moved;) {
      moved = false;
      for (auto& [lane, queue] : queues_)
        while (heads_[lane] < queue.size() && start(queue[heads_[lane]])) moved = true;
    }
    WEFT_CHECK(timeline_.events.size() == nodes_.size(), "{} of {} nodes ran", timeline_.events.size(), nodes_.size());
  }
  double end(int node) const { return done_[static_cast<std::size_t>(node)]; }

 private:
  struct Entry {
    int rank, label, micro_batch;
    double duration;
    std::vector<int> needs;
    int collective;
  };
  using LaneKey = std::pair<int, int>;

  double factor(int rank, int id) const {
    std::uint64_t x = static_cast<std::uint64_t>(id) * 0x9e3779b97f4a7c15u + 77;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    const double uniform = static_cast<double>(x >> 11) * 0x1p-53;
    return 1 + noise_ * (0.5 + 0.3 * (rank % 3) + (uniform < 0.02 ? 6 : 2 * (uniform - 0.5)));
  }
  LaneKey lane_of(const Entry& e) const {
    return {e.rank, static_cast<int>(timeline_.labels[static_cast<std::size_t>(e.label)].lane)};
  }
  double ready(int id) {  // when it could start; < 0: not yet known
    const Entry& e = nodes_[static_cast<std::size_t>(id)];
    const LaneKey lane = lane_of(e);
    if (queues_[lane][heads_[lane]] != id) return -1;
    double at = free_[lane];
    for (int need : e.needs) {
      if (end(need) < 0) return -1;
      at = std::max(at, end(need));
    }
    return at;
  }
  bool start(int id) {
    const int collective = nodes_[static_cast<std::size_t>(id)].collective;
    const std::vector<int> group = collective < 0 ? std::vector<int>{id} : members_[collective];
    double at = 0, duration = 0;
    for (int member : group) {
      const double t = ready(member);
      if (t < 0) return false;
      at = std::max(at, t);
      duration = std::max(duration, nodes_[static_cast<std::size_t>(member)].duration);
    }
    for (int member : group) {
      const Entry& e = nodes_[static_cast<std::size_t>(member)];
      const LaneKey lane = lane_of(e);
      ++heads_[lane];
      free_[lane] = done_[static_cast<std::size_t>(member)] = at + duration;
      timeline_.events.push_back({e.rank, e.label, e.micro_batch, at, at + duration});
    }
    return true;
  }

  Timeline& timeline_;
  double noise_;
  std::vector<Entry> nodes_;
  std::map<LaneKey, std::vector<int>> queues_;
  std::map<LaneKey, std::size_t> heads_;
  std::map<LaneKey, double> free_;
  std::map<int, std::vector<int>> members_;
  std::vector<double> done_;
};

// One rank's part of the schedule, unit by unit. Every stage has the same layers; ids of nodes are kept for those that
// follow.
class Sample {
 public:
  explicit Sample(const SampleShape& shape) : shape_(shape), simulation_(timeline_, shape.noise) {}

  Timeline make() {
    timeline_.title = fmt::format("[*E]x{} on {} ranks, {} micro-batches{}", shape_.layers * shape_.stages, ranks(),
                                  shape_.micro_batches, shape_.woven ? ", woven" : "");
    timeline_.ranks = ranks();
    for (int rank = 0; rank < ranks(); ++rank) gather(rank);
    // Stage by stage in rounds, so that what a node needs has been added before it.
    std::vector<std::vector<std::pair<int, int>>> orders;
    for (int stage = 0; stage < shape_.stages; ++stage) orders.push_back(order(stage));
    std::vector<std::size_t> next(orders.size(), 0);
    for (bool moved = true; moved;) {
      moved = false;
      for (std::size_t s = 0; s < orders.size(); ++s)
        while (next[s] < orders[s].size() && possible(static_cast<int>(s), orders[s][next[s]])) {
          for (int r = 0; r < shape_.replicas; ++r)
            combined(static_cast<int>(s) * shape_.replicas + r, orders[s][next[s]].first, orders[s][next[s]].second);
          ++next[s];
          moved = true;
        }
    }
    for (int rank = 0; rank < ranks(); ++rank) finish(rank);
    simulation_.run();
    memory();
    return std::move(timeline_);
  }

 private:
  int ranks() const { return shape_.stages * shape_.replicas; }
  int stage(int rank) const { return rank / shape_.replicas; }

  // Pairs (forward micro-batch, backward micro-batch), -1 for none: 1F1B.
  std::vector<std::pair<int, int>> order(int s) const {
    const int m = shape_.micro_batches,
              warm = std::min(m, shape_.woven ? 2 * (shape_.stages - 1 - s) + 1 : shape_.stages - 1 - s);
    std::vector<std::pair<int, int>> out;
    for (int i = 0; i < warm; ++i) out.push_back({i, -1});
    for (int i = warm; i < m; ++i) {
      if (shape_.woven) {
        out.push_back({i, i - warm});
      } else {
        out.push_back({i, -1});
        out.push_back({-1, i - warm});
      }
    }
    for (int i = m - warm; i < m; ++i) out.push_back({-1, i});
    return out;
  }
  bool possible(int s, std::pair<int, int> pair) const {
    const int first = s * shape_.replicas;
    if (pair.first >= 0 && s > 0 && !outputs_.contains({first - shape_.replicas, pair.first})) return false;
    return pair.second < 0 || s == shape_.stages - 1 || gradients_.contains({first + shape_.replicas, pair.second});
  }

  int label(Lane lane, Phase phase, int stage_of, int layer, const std::string& piece, double flops, double bytes) {
    const std::string name = fmt::format("main.{}E", stage_of * shape_.layers + layer);
    const std::string key = fmt::format("{} {} {}", name, piece, static_cast<int>(phase));
    const auto [it, is_new] = labels_.emplace(key, static_cast<int>(timeline_.labels.size()));
    if (!is_new) return it->second;
    TimelineLabel l;
    l.name = layer < 0 ? piece : name + "." + piece;
    l.layer = layer < 0 ? piece : name;
    l.lane = lane;
    l.phase = phase;
    l.unit = stage_of * shape_.layers + layer + 1;
    l.flops = flops;
    l.bytes = bytes;
    const bool back = phase != Phase::forward;
    l.uses.push_back({l.name + (back ? ".dy" : ".x"), Access::read, true, 4 << 20});
    if (back) l.uses.push_back({l.name + ".kept", Access::read, true, 6 << 20});
    if (phase == Phase::weight_gradient)
      l.uses.push_back({l.name + ".weight.gradient", Access::add, false, 3 << 20});
    else
      l.uses.push_back({l.name + (back ? ".dx" : ".y"), Access::write, true, 4 << 20});
    if (lane == Lane::compute) l.parameters = {l.name + ".up.weight", l.name + ".down.weight"};
    timeline_.labels.push_back(std::move(l));
    return it->second;
  }
  int compute(int rank, Phase phase, int layer, const std::string& piece, int m, double duration,
              const std::vector<int>& needs) {
    return simulation_.add(rank,
                           label(Lane::compute, phase, stage(rank), layer, piece, duration * 4e14, duration * 1e12), m,
                           duration, needs);
  }
  int exchange(int rank, Phase phase, int layer, const std::string& piece, int m, double duration, int need) {
    // One collective for all replicas of the stage.
    const auto key = std::tuple(stage(rank), layer, m, static_cast<int>(phase) * 2 + (piece == "combine"));
    const auto [it, is_new] = collectives_.emplace(key, static_cast<int>(collectives_.size()));
    return simulation_.add(rank, label(Lane::exchange, phase, stage(rank), layer, piece, 0, duration * 4e10), m,
                           duration, {need}, shape_.replicas > 1 ? it->second : -1);
  }

  void gather(int rank) {
    for (int l = 0; l < shape_.layers && shape_.replicas > 1; ++l)
      gathered_[{rank, l}] =
          simulation_.add(rank, label(Lane::gather, Phase::forward, stage(rank), l, "gather", 0, 2e6), -1, 60 * us, {});
  }

  // The forward of one micro-batch beside the backward of another; either may be absent.
  void combined(int rank, int f, int b) {
    const int n = shape_.layers;
    int x = -1, dy = -1;  // what the next unit needs
    if (f >= 0 && stage(rank) > 0) x = receive(rank, f, Phase::forward, outputs_[{rank - shape_.replicas, f}]);
    if (b >= 0 && stage(rank) < shape_.stages - 1)
      dy = receive(rank, b, Phase::backward, gradients_[{rank + shape_.replicas, b}]);
    if (b >= 0 && dy < 0) dy = outputs_[{rank, b}];
    const bool solo = shape_.replicas == 1;
    for (int k = 0; k < n; ++k) {
      const int l = k, c = n - 1 - k;
      const auto F = Phase::forward, B = Phase::backward, W = Phase::weight_gradient;
      int join_b = -1, combine_b = -1, route = -1, dispatch = -1, dispatch_b = -1, experts = -1, shared = -1;
      if (b >= 0) {
        join_b = combine_b = compute(rank, B, c, "join", b, 25 * us, {dy});
        if (!solo) combine_b = exchange(rank, B, c, "combine", b, 150 * us, join_b);
      }
      if (f >= 0) {
        const int mix = compute(rank, F, l, "mix", f, 120 * us, {x, gathered(rank, l)});
        route = dispatch = compute(rank, F, l, "route", f, 30 * us, {mix});
        if (!solo) dispatch = exchange(rank, F, l, "dispatch", f, 150 * us, route);
      }
      if (b >= 0) {
        const int e = compute(rank, B, c, "experts", b, 140 * us, {combine_b});
        dispatch_b = e;
        if (!solo) dispatch_b = exchange(rank, B, c, "dispatch", b, 150 * us, e);
        compute(rank, W, c, "experts", b, 130 * us, {e});
      }
      if (f >= 0) {
        if (shape_.woven) {
          experts = compute(rank, F, l, "experts", f, 140 * us, {dispatch});
          shared = compute(rank, F, l, "shared", f, 45 * us, {route});
        } else {
          shared = compute(rank, F, l, "shared", f, 45 * us, {route});
          experts = compute(rank, F, l, "experts", f, 140 * us, {dispatch});
        }
        int combine = experts;
        if (!solo) combine = exchange(rank, F, l, "combine", f, 150 * us, experts);
        last_ = combine;
      }
      const int combine = last_;
      if (b >= 0) {
        const int s = compute(rank, B, c, "shared", b, 45 * us, {join_b});
        compute(rank, W, c, "shared", b, 40 * us, {s});
        const int r = compute(rank, B, c, "route", b, 35 * us, {dispatch_b, s});
        dy = compute(rank, B, c, "mix", b, 140 * us, {r});
        freed_.push_back({rank, dy});
        last_weight_[{rank, c}] = compute(rank, W, c, "mix", b, 100 * us, {dy});
      }
      if (f >= 0) {
        x = compute(rank, F, l, "join", f, 25 * us, {combine, shared});
        kept_.push_back({rank, x});
      }
    }
    if (f >= 0) outputs_[{rank, f}] = x;
    if (b >= 0) gradients_[{rank, b}] = dy;
  }
  int receive(int rank, int m, Phase phase, int need) {
    return simulation_.add(rank, label(Lane::pipe_in, phase, stage(rank), -1, "receive", 0, 4e6), m, 40 * us, {need});
  }
  int gathered(int rank, int l) const {
    const auto it = gathered_.find({rank, l});
    return it == gathered_.end() ? -1 : it->second;
  }
  void finish(int rank) {
    for (int l = shape_.layers - 1; l >= 0; --l) {
      int ready = last_weight_[{rank, l}];
      if (shape_.replicas > 1)
        ready = simulation_.add(rank, label(Lane::reduce, Phase::backward, stage(rank), l, "reduce", 0, 4e6), -1,
                                110 * us, {ready});
      simulation_.add(rank, label(Lane::update, Phase::update, stage(rank), l, "update", 1e6, 3e7), -1, 50 * us,
                      {ready});
    }
  }
  void memory() {
    timeline_.memory.resize(static_cast<std::size_t>(ranks()));
    std::vector<std::vector<std::pair<double, double>>> changes(timeline_.memory.size());
    for (auto [rank, node] : kept_) changes[static_cast<std::size_t>(rank)].push_back({simulation_.end(node), 24e6});
    for (auto [rank, node] : freed_) changes[static_cast<std::size_t>(rank)].push_back({simulation_.end(node), -24e6});
    for (std::size_t r = 0; r < changes.size(); ++r) {
      std::sort(changes[r].begin(), changes[r].end());
      double bytes = 64e6 * shape_.layers;
      timeline_.memory[r].push_back({0, bytes});
      for (auto [time, change] : changes[r]) timeline_.memory[r].push_back({time, bytes += change});
    }
  }

  SampleShape shape_;
  Timeline timeline_;
  Simulation simulation_;
  std::map<std::string, int> labels_;
  std::map<std::pair<int, int>, int> outputs_, gradients_, gathered_, last_weight_;  // by rank and micro-batch or layer
  std::map<std::tuple<int, int, int, int>, int> collectives_;
  std::vector<std::pair<int, int>> kept_, freed_;  // rank, node
  int last_ = -1;
};

}  // namespace

Timeline sample_timeline(const SampleShape& shape) { return Sample(shape).make(); }

}  // namespace weft
