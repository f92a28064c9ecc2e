#include "weft/plan/passes/overlap_tensor.h"

#include <algorithm>
#include <set>
#include <tuple>

namespace weft {

namespace {

constexpr std::size_t most_passed = 96;  // nodes that a node passes: about a unit of each direction

class Overlapping {
 public:
  Overlapping(const Plan& plan, const std::vector<int>& unit_chunks)
      : plan_(plan), nodes_(plan.nodes), unit_chunks_(unit_chunks) {}

  Plan run() {
    // What goes first at first lets further transfers begin earlier.
    for (int turn = 0; turn < 2; ++turn) {
      begin_early();
      begun_.clear();
      for (std::size_t i = 1; i < nodes_.size(); ++i) {
        begun_.insert(pass_of(nodes_[i - 1]));
        if (waits(i))
          if (const std::size_t found = find(i); found < nodes_.size()) move_up(found, i);
      }
    }
    Plan ordered = plan_;
    ordered.nodes = std::move(nodes_);
    return ordered;
  }

 private:
  void move_up(std::size_t from, std::size_t to) {
    std::rotate(nodes_.begin() + static_cast<std::ptrdiff_t>(to), nodes_.begin() + static_cast<std::ptrdiff_t>(from),
                nodes_.begin() + static_cast<std::ptrdiff_t>(from) + 1);
  }

  // Transfers go before nodes of other passes that stand between them and the node before them in their own.
  void begin_early() {
    begun_.clear();
    for (std::size_t i = 1; i < nodes_.size(); ++i) {
      begun_.insert(pass_of(nodes_[i - 1]));
      const Node& node = nodes_[i];
      if (node.lane != Lane::tensor || node.micro_batch < 0 || !begun_.contains(pass_of(node))) continue;
      std::size_t to = i;
      while (to > 0 && i - to < most_passed && in_other_direction(nodes_[to - 1], node) &&
             !depend(nodes_[to - 1], node))
        --to;
      if (to < i) move_up(i, to);
    }
  }

  static bool in_other_direction(const Node& a, const Node& b) {
    if (a.micro_batch < 0) return false;
    return a.micro_batch != b.micro_batch || (a.phase == Phase::forward) != (b.phase == Phase::forward);
  }

  // Micro-batch, chunk and direction; the same for all nodes where there is one stage.
  using Pass = std::tuple<int, int, bool>;
  Pass pass_of(const Node& node) const {
    if (unit_chunks_.empty() || node.micro_batch < 0) return {};
    return {node.micro_batch, unit_chunks_.at(static_cast<std::size_t>(plan_.place_of(node).unit)),
            node.phase == Phase::forward};
  }

  // Whether node i computes with what a transfer of the tensor lane brings, and no computation is between the two.
  bool waits(std::size_t i) const {
    if (nodes_[i].lane != Lane::compute || nodes_[i].micro_batch < 0) return false;
    for (std::size_t t = i; t-- > 0 && nodes_[t].lane != Lane::compute;)
      if (nodes_[t].lane == Lane::tensor && depend(nodes_[t], nodes_[i])) return true;
    return false;
  }

  // Whether their order matters.
  bool depend(const Node& a, const Node& b) const {
    for (const BufferUse& x : plan_.uses_of(a))
      for (const BufferUse& y : plan_.uses_of(b))
        if (x.buffer == y.buffer && (x.access != Access::read || y.access != Access::read)) return true;
    return false;
  }

  bool other_pass(const Node& a, const Node& b) const {
    return a.micro_batch != b.micro_batch || b.phase == Phase::weight_gradient;
  }

  // The first node after `at` that may go before it, and that does not wait for a transfer itself.
  std::size_t find(std::size_t at) const {
    // The transfers that run by then, and the computation before them.
    std::size_t begun = at;
    while (begun > 0 && nodes_[begun - 1].lane != Lane::compute) --begun;
    const std::size_t end = std::min(nodes_.size(), at + 1 + most_passed);
    for (std::size_t i = at + 1; i < end && nodes_[i].micro_batch >= 0; ++i) {
      const Node& node = nodes_[i];
      if (!begun_.contains(pass_of(node)) && pass_of(node) != pass_of(nodes_[at])) break;
      if (node.lane != Lane::compute || node.kind != NodeKind::compute || !other_pass(nodes_[at], node)) continue;
      if (waits_for_rows(at, node)) continue;
      const auto independent = [&](const Node& passed) { return !depend(passed, node); };
      if (std::all_of(nodes_.begin() + static_cast<std::ptrdiff_t>(begun),
                      nodes_.begin() + static_cast<std::ptrdiff_t>(i), independent))
        return i;
    }
    return nodes_.size();
  }

  // Whether it needs rows of tokens that may still travel: what hides that exchange must stay before it.
  bool waits_for_rows(std::size_t at, const Node& node) const {
    const std::size_t first = at > most_passed ? at - most_passed : 0;
    return std::any_of(nodes_.begin() + static_cast<std::ptrdiff_t>(first),
                       nodes_.begin() + static_cast<std::ptrdiff_t>(at),
                       [&](const Node& earlier) { return earlier.lane == Lane::exchange && depend(earlier, node); });
  }

  const Plan& plan_;
  std::vector<Node> nodes_;
  const std::vector<int>& unit_chunks_;
  std::set<Pass> begun_;
};

}  // namespace

Plan overlap_tensor(const Plan& plan, const std::vector<int>& unit_chunks) {
  return Overlapping(plan, unit_chunks).run();
}

}  // namespace weft
