#include "weft/plan/passes/weave.h"

#include <algorithm>
#include <array>
#include <map>

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
  Weaver(const Plan& plan, bool early_attention_backward) : plan_(plan), early_(early_attention_backward) {
    const std::vector<int> passes = units_of_passes(plan);
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
      std::vector<int>& units = forward ? forward_units_ : backward_units_;
      if (node.micro_batch == 0 && std::find(units.begin(), units.end(), unit) == units.end()) units.push_back(unit);
    }
    for (auto* passes_of : {&forward_, &backward_})
      for (auto& [key, pass] : *passes_of) pass.fill();
  }

  Plan run() {
    out_.reserve(plan_.nodes.size());
    const int n = plan_.micro_batches;
    for (int unit : forward_units_) alone(forward_.at({0, unit}));
    for (int m = 1; m < n; ++m) {
      const std::size_t steps = std::max(forward_units_.size(), backward_units_.size());
      for (std::size_t k = 0; k < steps; ++k) {
        UnitPass* f = k < forward_units_.size() ? &forward_.at({m, forward_units_[k]}) : nullptr;
        UnitPass* b = k < backward_units_.size() ? &backward_.at({m - 1, backward_units_[k]}) : nullptr;
        if (f && b) {
          UnitPass* next = k + 1 < backward_units_.size() ? &backward_.at({m - 1, backward_units_[k + 1]}) : nullptr;
          combined(*f, *b, next);
        } else {
          alone(f ? *f : *b);
        }
      }
    }
    for (int unit : backward_units_) alone(backward_.at({n - 1, unit}));
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
    if (early_) put_phase(b.slot[4], false);   // route', mix': what they read dies here
    put(f.slot[2]);                            // shared, experts: beside dispatch'
    put(f.slot[3]);                            // exchange: combine
    if (!early_) put_phase(b.slot[4], false);  // route', mix': beside combine
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
  bool early_;
  std::map<std::pair<int, int>, UnitPass> forward_, backward_;  // by (micro-batch, unit)
  std::vector<int> forward_units_, backward_units_;             // in the order of the pass
  std::vector<Node> rest_;                                      // once per step
  std::vector<Node> out_;
};

}  // namespace

Plan weave(const Plan& plan, bool early_attention_backward) { return Weaver(plan, early_attention_backward).run(); }

}  // namespace weft
