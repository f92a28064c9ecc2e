#include "weft/plan/passes/shard.h"

#include <algorithm>
#include <map>
#include <set>
#include <tuple>

#include <fmt/format.h>

#include "weft/base/error.h"
#include "weft/plan/passes/recompute.h"

namespace weft {

namespace {

// early_again: what is computed again in the backward pass of a later unit.
enum class Direction : std::uint8_t { forward, backward, early_again };

// unit: in whose pass it runs.
Direction direction_of(const Plan& plan, const Node& node, int unit) {
  if (node.phase == Phase::recompute && plan.place_of(node).unit != unit) return Direction::early_again;
  return node.phase == Phase::backward || node.phase == Phase::weight_gradient || node.phase == Phase::recompute
             ? Direction::backward
             : Direction::forward;
}

std::int64_t elements_of_mean_unit(const Module& module, int division) {
  const std::vector<PieceId> first = first_uses_of_tensors(module);
  std::map<int, std::int64_t> units;
  for (std::size_t i = 0; i < module.parameters.size(); ++i)
    if (const Shard* shard = module.shard_of(TensorId(static_cast<std::int64_t>(i)), division);
        shard && first[i].valid())
      units[module.piece(first[i]).place.unit] += module.value(shard->whole).shape.elements();
  std::int64_t all = 0;
  for (const auto& [unit, elements] : units) all += elements;
  return units.empty() ? 0 : (all + std::ssize(units) - 1) / std::ssize(units);
}

// Nodes from `first` to `last` need these whole parameters.
struct Residency {
  Phase phase = Phase::forward;  // of the first node
  Direction direction = Direction::forward;
  std::int32_t micro_batch = -1, unit = 0, bundle = 0;
  std::int32_t first = 0, last = 0;
  struct Instance {
    BufferId buffer;
    std::int32_t last = 0;  // of its own nodes
  };
  std::map<ValueId, Instance> instances;
  std::int64_t elements = 0;
};

// One division of the parameters: over the ranks of an instance, or of what these have over the instances.
class Sharding {
 public:
  Sharding(const Plan& plan, const Module& module, int division, const PlanOptions& options)
      : plan_(plan),
        module_(module),
        division_(division),
        options_(options),
        before_(plan.nodes.size()),
        after_(plan.nodes.size()) {
    for (std::size_t i = 0; i < plan.buffers.size(); ++i)
      if (plan.buffers[i].micro_batch < 0)
        of_step_.emplace(plan.buffers[i].value, BufferId(static_cast<std::int64_t>(i)));
    mean_unit_ = elements_of_mean_unit(module, division);
    make_bundles();
  }

  Plan run() {
    find_residencies();
    place_gathers();
    for (const Residency& r : residencies_) release(r);
    if (plan_.kind != PlanKind::evaluate) reduce_gradients();
    std::vector<Node> nodes;
    for (std::size_t i = 0; i < plan_.nodes.size(); ++i) {
      nodes.insert(nodes.end(), before_[i].begin(), before_[i].end());
      nodes.push_back(plan_.nodes[i]);
      nodes.insert(nodes.end(), after_[i].begin(), after_[i].end());
    }
    plan_.nodes = std::move(nodes);
    return std::move(plan_);
  }

 private:
  // Tensors that are gathered, released and reduced together.
  struct Bundle {
    int unit = 0;
    std::string layer, piece;  // of the places of its nodes
  };

  void make_bundles() {
    const std::vector<PieceId> first = first_uses_of_tensors(module_);
    std::map<std::int64_t, std::int32_t> known;  // by piece or unit
    bundle_of_.resize(module_.parameters.size(), -1);
    for (std::size_t i = 0; i < module_.parameters.size(); ++i) {
      const Shard* shard = module_.shard_of(TensorId(static_cast<std::int64_t>(i)), division_);
      if (!shard || !first[i].valid()) continue;
      const PiecePlace& place = module_.piece(first[i]).place;
      const auto [at, is_new] = known.try_emplace(options_.gather_by_piece ? first[i].value : place.unit,
                                                  static_cast<std::int32_t>(bundles_.size()));
      if (is_new)
        bundles_.push_back(options_.gather_by_piece ? Bundle{place.unit, place.layer, place.piece + "."}
                                                    : Bundle{place.unit, fmt::format("unit.{}", place.unit), ""});
      bundle_of_[i] = at->second;
    }
  }

  PlaceId place(std::int32_t bundle, const char* what) {
    const auto [at, is_new] = places_.try_emplace({bundle, what});
    const Bundle& b = bundles_[static_cast<std::size_t>(bundle)];
    if (is_new) at->second = plan_.add_place(b.unit, b.layer, b.piece + (division_ == 2 ? "outer_" : "") + what);
    return at->second;
  }
  const Shard& shard_of(ValueId value) const {
    return *module_.shard_of(plan_.values[value.index()].tensor, division_);
  }
  bool is_divided(ValueId whole, ValueId Shard::*member) const {
    const Shard* shard = module_.shard_of(plan_.values[whole.index()].tensor, division_);
    return shard && shard->*member == whole;
  }
  std::int32_t bundle_of(ValueId value) const { return bundle_of_[plan_.values[value.index()].tensor.index()]; }
  BufferId buffer_of_step(ValueId value) {
    const auto [at, is_new] = of_step_.try_emplace(value);
    if (is_new) at->second = plan_.add_buffer(value);
    return at->second;
  }
  bool gathers_once() const {
    return division_ == 2 ||
           (plan_.kind != PlanKind::evaluate && module_.sharding != ShardingStrategy::optim_grads_params);
  }

  // Finds the residencies, in the order of their first nodes, and gives each its instances.
  void find_residencies() {
    std::map<std::tuple<std::int32_t, std::int32_t, Direction, int>, std::size_t> known;
    std::map<ValueId, std::int32_t> made_of;
    const std::vector<int> passes = units_of_passes(plan_);
    for (std::size_t i = 0; i < plan_.nodes.size(); ++i) {
      const Node& node = plan_.nodes[i];
      for (std::int32_t u = node.first_use; u < node.first_use + node.uses; ++u) {
        BufferUse& use = plan_.uses[static_cast<std::size_t>(u)];
        const ValueId value = plan_.buffers[use.buffer.index()].value;
        if (plan_.values[value.index()].storage != StorageClass::gathered || !is_divided(value, &Shard::whole))
          continue;
        const std::int32_t bundle = bundle_of(value);
        const int unit = plan_.place_of(node).unit;
        const Direction direction = direction_of(plan_, node, passes[i]);
        const auto [at, is_new] =
            known.try_emplace(gathers_once() ? std::tuple{bundle, -1, Direction::forward, 0}
                                             : std::tuple{bundle, node.micro_batch, direction, unit},
                              residencies_.size());
        if (is_new) {
          residencies_.emplace_back();
          Residency& made = residencies_.back();
          made.phase = node.phase;
          made.bundle = bundle;
          made.unit = unit;
          made.first = static_cast<std::int32_t>(i);
          if (!gathers_once()) {
            made.micro_batch = node.micro_batch;
            made.direction = direction;
          }
        }
        Residency& residency = residencies_[at->second];
        residency.last = static_cast<std::int32_t>(i);
        const auto [instance, is_first_use] = residency.instances.try_emplace(value);
        if (is_first_use) {
          const std::int32_t number = made_of[value]++;
          instance->second.buffer = number == 0 ? use.buffer : plan_.add_buffer(value, -1, number);
          residency.elements += plan_.values[value.index()].shape.elements();
        }
        instance->second.last = static_cast<std::int32_t>(i);
        use.buffer = instance->second.buffer;
      }
    }
  }

  // Walks the list and puts the next gather before the present node as soon as the bound allows, at the latest where it is
  // used.
  void place_gathers() {
    const std::int64_t most = options_.gather_ahead >= 0 ? options_.gather_ahead : mean_unit_;
    std::size_t next = 0;                                // of the residencies, in the order of their first nodes
    std::size_t begun = 0;                               // those before it are in use or past
    std::int64_t ahead = 0;                              // elements gathered and not used yet
    std::vector<std::size_t> ends(residencies_.size());  // by their last nodes
    for (std::size_t r = 0; r < ends.size(); ++r) ends[r] = r;
    std::stable_sort(ends.begin(), ends.end(),
                     [&](std::size_t a, std::size_t b) { return residencies_[a].last < residencies_[b].last; });
    std::size_t ended = 0;
    std::map<std::tuple<Direction, std::int32_t, std::int32_t>, int> held;  // by direction, unit, micro-batch
    const auto key_of = [](const Residency& r) { return std::tuple{r.direction, r.unit, r.micro_batch}; };
    const auto slots = [&](const Residency& r) {  // in use in that direction if r is gathered too
      int used = held.contains(key_of(r)) ? 0 : 1;
      for (const auto& [key, count] : held) used += std::get<0>(key) == r.direction;
      return used;
    };
    for (std::size_t i = 0; i < plan_.nodes.size(); ++i) {
      for (; ended < ends.size() && residencies_[ends[ended]].last < static_cast<std::int32_t>(i); ++ended)
        if (const auto at = held.find(key_of(residencies_[ends[ended]])); at != held.end() && --at->second == 0)
          held.erase(at);
      const auto put = [&](Residency& r) {
        gather(i, r);
        ahead += r.elements;
        ++held[key_of(r)];
        ++next;
      };
      while (next < residencies_.size() && residencies_[next].first == static_cast<std::int32_t>(i))
        put(residencies_[next]);
      for (; begun < next && residencies_[begun].first <= static_cast<std::int32_t>(i); ++begun)
        ahead -= residencies_[begun].elements;
      while (next < residencies_.size()) {
        Residency& r = residencies_[next];
        const bool fits = gathers_once()         ? true
                          : options_.two_buffers ? slots(r) <= 2
                                                 : ahead == 0 || ahead + r.elements <= most;
        if (!fits) break;
        put(r);
      }
    }
  }

  // Collectives of one node stay together by group.
  template <class Tensors>
  static void sort_by_group(Tensors& collectives) {
    std::stable_sort(collectives.begin(), collectives.end(),
                     [](const NodeCollective& a, const NodeCollective& b) { return a.group < b.group; });
  }

  void gather(std::size_t at, const Residency& r) {
    std::vector<BufferUse> used;
    std::vector<NodeCollective> communication;
    for (const auto& [value, instance] : r.instances) {
      const ValueId part = shard_of(value).part;
      NodeCollective c{CollectiveKind::all_gather, shard_of(value).over, buffer_of_step(part), instance.buffer};
      c.bytes = plan_.values[part.index()].bytes;
      communication.push_back(c);
      used.push_back({c.send});
      used.push_back({c.receive, Access::write});
    }
    sort_by_group(communication);
    before_[at].push_back(plan_.make_node(NodeKind::communicate, r.phase, Lane::gather, place(r.bundle, "gather"),
                                          r.micro_batch, used, communication));
  }

  void release(const Residency& r) {
    std::map<std::int32_t, std::vector<BufferUse>> by_last;
    for (const auto& [value, instance] : r.instances)
      by_last[instance.last].push_back({instance.buffer, Access::write});
    for (const auto& [last, used] : by_last)
      after_[static_cast<std::size_t>(last)].push_back(
          plan_.make_node(NodeKind::release, r.phase, Lane::gather, place(r.bundle, "release"), r.micro_batch, used));
  }

  // Partial gradients of one bundle and one micro-batch (-1: of the step) that are reduced together.
  struct Reduction {
    std::int32_t last = 0;  // node that contributes
    std::vector<BufferId> gradients;
  };

  void reduce_gradients() {
    std::vector<std::int32_t> last(plan_.buffers.size(), -1);
    for (std::size_t i = 0; i < plan_.nodes.size(); ++i)
      for (const BufferUse& use : plan_.uses_of(plan_.nodes[i]))
        if (use.access == Access::add) last[use.buffer.index()] = static_cast<std::int32_t>(i);
    std::map<std::pair<std::int32_t, std::int32_t>, Reduction> reductions;  // by micro-batch, bundle
    std::map<ValueId, std::int32_t> times;                                  // that a value is reduced in a step
    for (std::size_t b = 0; b < last.size(); ++b) {
      const BufferId buffer(static_cast<std::int64_t>(b));
      const Buffer& partial = plan_.buffers[b];
      if (last[b] < 0 || plan_.value_of(buffer).storage != StorageClass::partial ||
          !is_divided(partial.value, &Shard::partial_gradient))
        continue;
      Reduction& reduction = reductions[{partial.micro_batch, bundle_of(partial.value)}];
      reduction.gradients.push_back(buffer);
      reduction.last = std::max(reduction.last, last[b]);
      ++times[partial.value];
    }
    for (const auto& [key, reduction] : reductions) reduce(key.first, key.second, reduction, times);
  }

  // The value that a sum arrives in before it is added to the kept gradient.
  ValueId sum_of(ValueId partial) {
    const auto [at, is_new] = sums_.try_emplace(partial);
    if (is_new) {
      const ValueInfo& from = plan_.values[partial.index()];
      ValueInfo sum = plan_.values[shard_of(partial).part_gradient.index()];
      sum.name = "sum(" + from.name + ")";
      sum.storage = StorageClass::activation;
      sum.bytes =
          sum.bytes / static_cast<std::int64_t>(size_of(sum.dtype)) * static_cast<std::int64_t>(size_of(from.dtype));
      sum.dtype = from.dtype;
      sum.summed_over = from.summed_over;
      at->second = plan_.add_value(sum);
    }
    return at->second;
  }

  void reduce(std::int32_t micro_batch, std::int32_t bundle, const Reduction& reduction,
              const std::map<ValueId, std::int32_t>& times) {
    std::vector<BufferUse> used, added;
    std::vector<NodeCollective> communication;
    for (const BufferId gradient : reduction.gradients) {
      const ValueId partial = plan_.buffers[gradient.index()].value;
      const ValueId kept = shard_of(partial).part_gradient;
      const GroupId over = shard_of(partial).over;
      const std::int32_t all = times.at(partial);
      ValueInfo& info = plan_.values[kept.index()];
      const BufferId into = buffer_of_step(kept);
      NodeCollective c{CollectiveKind::reduce_scatter, over, gradient, into};
      c.bytes = plan_.values[partial.index()].bytes;
      // What is summed again, over instances, is a sum of its own.
      if (all == 1 && info.dtype == plan_.values[partial.index()].dtype && !info.summed_over.valid()) {
        info.summed_over = info.replicas = over;
      } else {
        c.receive = plan_.add_buffer(sum_of(partial), micro_batch);
        added.push_back({c.receive});
        added.push_back({into, Access::add, plan_.buffers[into.index()].contributions++});
      }
      used.push_back({gradient});
      used.push_back({c.receive, Access::write});
      communication.push_back(c);
    }
    sort_by_group(communication);
    std::vector<Node>& nodes = after_[static_cast<std::size_t>(reduction.last)];
    nodes.push_back(plan_.make_node(NodeKind::communicate, Phase::reduce, Lane::reduce, place(bundle, "reduce"),
                                    micro_batch, used, communication));
    if (!added.empty())
      nodes.push_back(
          plan_.make_node(NodeKind::accumulate, Phase::reduce, Lane::reduce, place(bundle, "add"), micro_batch, added));
  }

  Plan plan_;
  const Module& module_;
  const int division_;
  const PlanOptions& options_;
  std::vector<Bundle> bundles_;
  std::vector<std::int32_t> bundle_of_;  // by TensorId; -1: not divided
  std::int64_t mean_unit_ = 0;           // elements
  std::map<ValueId, BufferId> of_step_;
  std::map<std::pair<std::int32_t, std::string>, PlaceId> places_;
  std::map<ValueId, ValueId> sums_;
  std::vector<Residency> residencies_;
  std::vector<std::vector<Node>> before_, after_;  // by node of the given plan
};

}  // namespace

std::int64_t elements_of_mean_unit(const Module& module) { return elements_of_mean_unit(module, 1); }

Plan shard(const Plan& plan, const Module& module, const PlanOptions& options) {
  WEFT_CHECK(plan.kind != PlanKind::gradients, "gradients of divided parameters are not kept");
  Plan sharded = plan;
  for (const int division : {1, 2})
    if (!module.shards[static_cast<std::size_t>(division - 1)].empty())
      sharded = Sharding(sharded, module, division, options).run();
  return sharded;
}

}  // namespace weft
