#include "weft/plan/passes/delay_weight_gradients.h"

namespace weft {

Plan delay_weight_gradients(const Plan& plan) {
  Plan delayed = plan;
  delayed.nodes.clear();
  std::vector<Node> waiting;  // of the unit and micro-batch that is being passed
  int unit = -1, micro_batch = -1;
  const auto flush = [&] {
    delayed.nodes.insert(delayed.nodes.end(), waiting.begin(), waiting.end());
    waiting.clear();
  };
  for (const Node& node : plan.nodes) {
    const PieceInfo& piece = plan.pieces[node.piece.index()];
    const bool backward = node.phase == Phase::backward || node.phase == Phase::weight_gradient;
    if (!backward || piece.unit != unit || node.micro_batch != micro_batch) flush();
    unit = piece.unit;
    micro_batch = node.micro_batch;
    if (node.phase == Phase::weight_gradient && piece.piece != "experts") {
      waiting.push_back(node);
    } else {
      delayed.nodes.push_back(node);
    }
  }
  flush();
  return delayed;
}

}  // namespace weft
