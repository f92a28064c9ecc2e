#include "weft/plan/estimate.h"

#include <map>

namespace weft {

void price(Plan& plan, const Module& module, const Pricer& pricer) {
  std::map<std::pair<PieceId, Phase>, PieceCost> known;
  for (Node& node : plan.nodes) {
    const auto [at, is_new] = known.try_emplace({node.piece, node.phase});
    if (is_new) {
      const std::size_t i = node.piece.index();
      const Piece& piece = i < module.pieces.size() ? module.pieces[i] : module.updates[i - module.pieces.size()];
      at->second = pricer(piece, node.phase);
    }
    node.flops = at->second.flops;
    node.bytes = at->second.bytes;
  }
}

double total_flops(const Plan& plan) {
  double flops = 0;
  for (const Node& node : plan.nodes) flops += node.flops;
  return flops;
}

ParameterCount count_parameters(const Module& module, std::int64_t experts, std::int64_t chosen) {
  ParameterCount count;
  for (const ParameterTensor& tensor : module.parameters) {
    const std::int64_t elements = tensor.shape.elements();
    count.all += elements;
    if (tensor.parts.front().identity.role == Role::embedding) continue;
    count.active += tensor.expert ? elements / experts * chosen : elements;
  }
  return count;
}

}  // namespace weft
