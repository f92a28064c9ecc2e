#include "weft/plan/passes/weave.h"

#include <algorithm>
#include <array>
#include <map>
#include <set>

#include "weft/base/error.h"
#include "weft/plan/passes/recompute.h"

namespace weft {

namespace {

// Nodes of one pass over one unit, in slots: computation up to the first exchange, that exchange, computation up to the
// second, that exchange, the rest. Forward: mix, route | counts, dispatch | shared, experts | combine | join. Backward:
// join' | combine' | experts', shared' and their weights | dispatch' | route', mix', weights.
// A unit may compute again, in these slots, what its own layers need. What layers of earlier units must compute for it first
// comes before the slots, alone; so does what its own layers compute again if that takes a dispatch and a combine (whose
// result the weights of latent experts need).
struct UnitPass {
  static constexpr std::size_t slots = 5;
  std::vector<Node> nodes;  // for the slots
  std::array<std::vector<Node>, slots> slot;
  std::vector<Node> before;

  void fill() {
    if (put(nodes)) return;
    std::size_t last = nodes.size();  // exchange that runs again
    while (last > 0 && !(nodes[last - 1].phase == Phase::recompute && nodes[last - 1].lane == Lane::exchange)) --last;
    std::vector<Node> others;
    for (std::size_t i = 0; i < nodes.size(); ++i)
      (i < last && nodes[i].phase == Phase::recompute ? before : others).push_back(nodes[i]);
    slot = {};
    WEFT_CHECK(put(others), "weave cannot hide more than two exchanges per unit");
  }
  // After the last exchange, if there is anything.
  std::size_t last() const {
    std::size_t at = slots - 1;
    while (at > 0 && slot[at].empty()) --at;
    return at;
  }

 private:
  // False: there are not enough slots.
  bool put(const std::vector<Node>& list) {
    std::size_t at = 0;
    for (const Node& node : list) {
      while ((at % 2 == 1) != (node.lane == Lane::exchange)) ++at;
      if (at >= slots) return false;
      slot[at].push_back(node);
    }
    return true;
  }
};

class Weaver {
 public:
  Weaver(const Plan& plan, const std::vector<int>& unit_chunks, const WeaveOptions& options)
      : plan_(plan), options_(options) {
    const std::vector<int> passes = units_of_passes(plan);
    std::set<BufferId> forward_sums;
    std::set<int> seen[2];
    for (std::size_t i = 0; i < plan.nodes.size(); ++i) {
      const Node& node = plan.nodes[i];
      if (node.micro_batch < 0) {
        rest_.push_back(node);
        continue;
      }
      const int unit = passes[i];
      const bool forward = node.phase == Phase::forward;
      UnitPass& pass = (forward ? forward_ : backward_)[{node.micro_batch, unit}];
      (unit == plan.place_of(node).unit ? pass.nodes : pass.before).push_back(node);
      if (seen[forward].insert(unit).second)
        (forward ? forward_units_ : backward_units_)[unit_chunks.at(static_cast<std::size_t>(unit))].push_back(unit);
      for (const BufferUse& use : plan.uses_of(node))
        if (forward && use.access == Access::add) forward_sums.insert(use.buffer);
    }
    for (const Node& node : plan.nodes)
      for (const BufferUse& use : plan.uses_of(node))
        if (node.phase == Phase::weight_gradient && use.access == Access::add && forward_sums.contains(use.buffer))
          stays_.insert({node.place, node.micro_batch});
    for (auto* passes_of : {&forward_, &backward_})
      for (auto& [key, pass] : *passes_of) pass.fill();
  }

  Plan run(const PassOrder& order) {
    out_.reserve(plan_.nodes.size());
    std::set<std::pair<int, int>> weights_left;  // by chunk, micro-batch
    for (std::size_t i = 0; i < order.size(); ++i) {
      const ModelPass& pass = order[i];
      if (pass.with_next) {
        WEFT_CHECK(i + 1 < order.size() && order[i + 1].direction == ModelPass::Direction::backward,
                   "a forward pass is paired with no backward pass");
        pair(pass, order[++i]);
        continue;
      }
      const auto& units = pass.direction == ModelPass::Direction::forward ? forward_units_ : backward_units_;
      const auto of_chunk = units.find(pass.chunk);
      if (of_chunk == units.end()) continue;
      if (pass.weights_later) weights_left.insert({pass.chunk, pass.micro_batch});
      if (pass.direction == ModelPass::Direction::weight_gradients &&
          weights_left.erase({pass.chunk, pass.micro_batch}) == 0)
        continue;  // they hid exchanges
      if (pass.direction == ModelPass::Direction::backward && options_.weights_after_passes && !pass.weights_later) {
        alone_but_weights_last(of_chunk->second, pass.micro_batch);
        continue;
      }
      for (int unit : of_chunk->second) {
        if (pass.direction == ModelPass::Direction::forward)
          alone(forward_.at({pass.micro_batch, unit}));
        else if (pass.weights_later || pass.direction == ModelPass::Direction::weight_gradients)
          part(backward_.at({pass.micro_batch, unit}), pass.direction == ModelPass::Direction::weight_gradients);
        else
          alone(backward_.at({pass.micro_batch, unit}));
      }
    }
    out_.insert(out_.end(), rest_.begin(), rest_.end());
    WEFT_CHECK(out_.size() == plan_.nodes.size(), "{} of {} nodes woven", out_.size(), plan_.nodes.size());
    Plan woven = plan_;
    woven.nodes = std::move(out_);
    return woven;
  }

 private:
  void put(const std::vector<Node>& nodes) { out_.insert(out_.end(), nodes.begin(), nodes.end()); }
  void put_phase(const std::vector<Node>& nodes, bool weights) {
    for (const Node& node : nodes)
      if ((node.phase == Phase::weight_gradient) == weights) out_.push_back(node);
  }
  void alone(const UnitPass& pass) {
    put(pass.before);
    for (const std::vector<Node>& nodes : pass.slot) put(nodes);
  }
  // A backward pass over a chunk. What comes before the last exchange of a unit hides it.
  void alone_but_weights_last(const std::vector<int>& units, int micro_batch) {
    for (const int unit : units) {
      const UnitPass& pass = backward_.at({micro_batch, unit});
      put(pass.before);
      const std::size_t last = pass.last();
      for (std::size_t slot = 0; slot < last; ++slot) put(pass.slot[slot]);
      put_phase(pass.slot[last], false);
    }
    for (const int unit : units) {
      const UnitPass& pass = backward_.at({micro_batch, unit});
      put_phase(pass.slot[pass.last()], true);
    }
  }
  // Of a backward pass: its weight gradients, or all the rest.
  void part(const UnitPass& pass, bool weights) {
    if (!weights) put(pass.before);
    for (const std::vector<Node>& nodes : pass.slot)
      for (const Node& node : nodes)
        if ((node.phase == Phase::weight_gradient && !stays_.contains({node.place, node.micro_batch})) == weights)
          out_.push_back(node);
  }

  void pair(const ModelPass& forward, const ModelPass& backward) {
    static const std::vector<int> none;
    const auto units_in = [](const std::map<int, std::vector<int>>& units, int chunk) -> const std::vector<int>& {
      const auto at = units.find(chunk);
      return at == units.end() ? none : at->second;
    };
    const std::vector<int>&f = units_in(forward_units_, forward.chunk), &b = units_in(backward_units_, backward.chunk);
    const auto backward_unit = [&](std::size_t k) -> UnitPass& { return backward_.at({backward.micro_batch, b[k]}); };
    for (std::size_t k = 0; k < std::max(f.size(), b.size()); ++k) {
      if (k >= b.size())
        alone(forward_.at({forward.micro_batch, f[k]}));
      else if (k >= f.size())
        alone(backward_unit(k));
      else
        combined(forward_.at({forward.micro_batch, f[k]}), backward_unit(k),
                 k + 1 < b.size() ? &backward_unit(k + 1) : nullptr);
    }
  }

  static bool exchanges(const UnitPass& pass) { return !pass.slot[1].empty() || !pass.slot[3].empty(); }

  // next: the backward unit that follows b. Its join' comes as early as possible, so that its combine' may directly
  // follow this unit's combine, beside weights and the forward join.
  void combined(const UnitPass& f, UnitPass& b, UnitPass* next) {
    if (!exchanges(b)) return around(f, b);
    put(b.before);
    const std::vector<Node>& mix = f.slot[0];
    // A forward unit without an exchange hides both exchanges of the backward unit, with half of its nodes each.
    const auto half = exchanges(f) ? mix.end() : mix.begin() + static_cast<std::ptrdiff_t>((mix.size() + 1) / 2);
    put(b.slot[0]);                              // join', unless the previous unit has put it
    put(b.slot[1]);                              // exchange: combine'
    out_.insert(out_.end(), mix.begin(), half);  // mix, route: beside combine'
    put(f.slot[1]);                              // exchange: counts, dispatch
    put(b.slot[2]);                              // experts', shared' and their weights: beside dispatch
    put(b.slot[3]);                              // exchange: dispatch'
    out_.insert(out_.end(), half, mix.end());
    if (options_.early_attention_backward) put_phase(b.slot[4], false);   // route', mix': what they read dies here
    put(f.slot[2]);                                                       // shared, experts: beside dispatch'
    put(f.slot[3]);                                                       // exchange: combine
    if (!options_.early_attention_backward) put_phase(b.slot[4], false);  // route', mix': beside combine
    if (next && exchanges(*next) && next->before.empty()) {
      put(next->slot[0]);
      next->slot[0].clear();
    }
    put_phase(b.slot[4], true);  // weights
    put(f.slot[4]);              // join
  }

  // The backward unit has no exchange: its input gradients hide dispatch, its weights hide combine. If the forward unit
  // has none either, backward comes first. So the embedding's gradient comes before the next micro-batch's gradient of
  // the head, as in the plain order, even if they are one parameter.
  void around(const UnitPass& f, const UnitPass& b) {
    std::vector<Node> inputs, weights;
    for (const std::vector<Node>& nodes : b.slot)
      for (const Node& node : nodes) (node.phase == Phase::weight_gradient ? weights : inputs).push_back(node);
    if (!exchanges(f)) {
      alone(b);
      return alone(f);
    }
    put(f.slot[0]);
    put(f.slot[1]);
    put(b.before);
    put(inputs);
    put(f.slot[2]);
    put(f.slot[3]);
    put(weights);
    put(f.slot[4]);
  }

  const Plan& plan_;
  const WeaveOptions options_;
  std::map<std::pair<int, int>, UnitPass> forward_, backward_;      // by (micro-batch, unit)
  std::map<int, std::vector<int>> forward_units_, backward_units_;  // by chunk, in the order of the pass
  std::set<std::pair<PlaceId, std::int32_t>> stays_;  // weight gradients that the next forward pass adds to (expand)
  std::vector<Node> rest_;                            // once per step
  std::vector<Node> out_;
};

}  // namespace

Plan weave(const Plan& plan, const PassOrder& order, const std::vector<int>& unit_chunks, const WeaveOptions& options) {
  return Weaver(plan, unit_chunks, options).run(order);
}

}  // namespace weft
