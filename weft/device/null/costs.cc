// What operations cost. Products count a multiplication and an addition per term; the rest counts the bytes it moves
// and a few FLOP per element, which no schedule depends on.
#include <algorithm>

#include "weft/device/null/device.h"

namespace weft {

namespace {

double elements(const Tensor& t) { return t.given() ? static_cast<double>(t.shape.elements()) : 0; }
double bytes(const Tensor& t) { return t.given() ? static_cast<double>(t.bytes()) : 0; }

template <class... Tensors>
double bytes_of(const Tensors&... tensors) {
  return (bytes(tensors) + ...);
}

// An elementwise pass.
template <class... Tensors>
OperationCost pass(double flops_per_element, const Tensor& first, const Tensors&... rest) {
  return {flops_per_element * elements(first), bytes_of(first, rest...)};
}

// Pairs of query and key that causal attention looks at, over all sequences of one head.
double pairs(std::int64_t tokens, std::int64_t sequence, std::int64_t seen) {
  const auto length = static_cast<double>(sequence > 0 ? sequence : tokens);
  if (length == 0) return 0;
  const double window = seen > 0 ? std::min(static_cast<double>(seen), length) : length;
  const double one = window * (window + 1) / 2 + (length - window) * window;
  return one * static_cast<double>(tokens) / length;
}
double pairs(const Attention& a) { return pairs(a.q.rows(), a.length, a.window); }
// A query sees at most as many keys as are chosen.
double chosen_pairs(const SparseAttention& a) {
  return pairs(a.attention.q.rows(), a.attention.length, a.keys.shape[1]);
}
double chosen_flops(const SparseAttention& x) {
  const Attention& a = x.attention;
  return 2 * chosen_pairs(x) * static_cast<double>(a.heads) * static_cast<double>(a.dim + a.value_dim);
}
double index_flops(const Indexer& x, double pairs_seen) {
  return 2 * pairs_seen * static_cast<double>(x.heads) * static_cast<double>(x.dim + 1);
}

double block_flops(const AttentionBlock& a) {
  const double admitted = 0.5 * static_cast<double>(a.q.rows()) * static_cast<double>(a.k.rows());
  return 2 * admitted * static_cast<double>(a.heads) * static_cast<double>(a.dim + a.value_dim);
}

double attention_flops(const Attention& a) {
  return 2 * pairs(a) * static_cast<double>(a.heads) * static_cast<double>(a.dim + a.value_dim);
}

// Of the pairs of a chunk, the half that causality lets through: (n + 1) / 2 per token in chunks of n.
double pairs_per_token(std::int64_t tokens, std::int64_t length, std::int64_t chunk) {
  if (length == 0) length = tokens;
  const std::int64_t whole = length / chunk, rest = length % chunk;
  if (length == 0) return 0;
  return static_cast<double>(whole * chunk * (chunk + 1) / 2 + rest * (rest + 1) / 2) / static_cast<double>(length);
}

}  // namespace

OperationCost cost_of(const Matmul& x) {
  const double k = static_cast<double>(x.transpose_a == Transposed::yes ? x.a.shape[0] : x.a.shape[1]);
  const double again = x.store == Store::add ? bytes(x.c) : 0;
  return {2 * elements(x.c) * k, bytes_of(x.a, x.b, x.c, x.bias, x.residual) + again};
}

OperationCost cost_of(const GroupedMatmul& x) {
  const auto rows = static_cast<double>(x.x.rows());
  const double again = x.store == Store::add ? bytes(x.w) : 0;
  return {2 * rows * static_cast<double>(x.w.shape[1]) * static_cast<double>(x.w.shape[2]),
          bytes_of(x.x, x.w, x.y, x.bias) + again};
}

OperationCost cost_of(const ColumnSum& x) { return pass(1, x.x, x.y); }
OperationCost cost_of(const GroupedColumnSum& x) { return pass(1, x.x, x.y); }
OperationCost cost_of(const GroupedBias& x) { return pass(2, x.y, x.y, x.bias, x.scale); }
OperationCost cost_of(const GroupedBiasGradient& x) { return pass(2, x.dy, x.dbias, x.scale); }
OperationCost cost_of(const GroupedBiasScaleGradient& x) { return pass(2, x.dy, x.bias, x.dscale, x.dscale); }
OperationCost cost_of(const RmsNorm& x) { return pass(4, x.x, x.y, x.weight, x.inverse); }
OperationCost cost_of(const RmsNormBackward& x) { return pass(11, x.x, x.dy, x.dx, x.residual, x.weight, x.dweight); }
OperationCost cost_of(const LayerNorm& x) { return pass(6, x.x, x.y, x.weight, x.bias); }
OperationCost cost_of(const LayerNormBackward& x) { return pass(10, x.x, x.dy, x.dx, x.weight); }
OperationCost cost_of(const LayerNormWeightGradient& x) { return pass(4, x.x, x.dy, x.dweight, x.dbias); }
OperationCost cost_of(const Rotary& x) { return pass(3, x.x, x.y, x.cosine, x.sine); }
OperationCost cost_of(const LatentHeads& x) { return pass(3, x.q, x.q, x.k, x.own, x.shared); }
OperationCost cost_of(const LatentHeadsBackward& x) { return pass(4, x.dq, x.dq, x.dk, x.down, x.dshared); }
OperationCost cost_of(const Attention& x) { return {attention_flops(x), bytes_of(x.q, x.k, x.v, x.out, x.lse)}; }
OperationCost cost_of(const AttentionBackward& x) {
  const Attention& f = x.forward;
  return {2.5 * attention_flops(f), bytes_of(f.q, f.k, f.v, f.out, f.lse, x.dout, x.dq, x.dk, x.dv)};
}
// Half of the pairs: with chunks from both ends of a sequence that is so of every block but a rank's own.
OperationCost cost_of(const VisibleKeys& x) {
  return {0, bytes_of(x.places, x.key_places, x.boundaries, x.first, x.end)};
}
OperationCost cost_of(const AttentionBlock& x) {
  return {block_flops(x), bytes_of(x.q, x.k, x.v, x.out, x.lse, x.first, x.end)};
}
OperationCost cost_of(const AttentionDelta& x) {
  return {2 * static_cast<double>(x.dout.shape.elements()), bytes_of(x.out, x.dout, x.delta)};
}
OperationCost cost_of(const AttentionBlockBackward& x) {
  const AttentionBlock& f = x.forward;
  return {2.5 * block_flops(f), bytes_of(f.q, f.k, f.v, f.lse, x.dout, x.delta, x.dq, x.dk, x.dv)};
}
OperationCost cost_of(const CausalConvolution& x) {
  return pass(2 * static_cast<double>(x.weight.columns()) + 6, x.x, x.y, x.weight, x.bias);
}
OperationCost cost_of(const CausalConvolutionBackward& x) {
  return pass(4 * static_cast<double>(x.forward.weight.columns()) + 10, x.forward.x, x.dy, x.dx, x.forward.weight);
}
OperationCost cost_of(const CausalConvolutionWeightGradient& x) {
  return pass(4 * static_cast<double>(x.forward.weight.columns()) + 10, x.forward.x, x.dy, x.dweight, x.dbias);
}
// Products with the state, and with the pairs of a chunk: forward 2 and 1 for every head, 1 for every group (C B^T).
OperationCost cost_of(const StateScan& x) {
  const auto tokens = static_cast<double>(x.x.rows());
  const double inner = static_cast<double>(x.heads * x.dim), wide = static_cast<double>(x.groups * x.state);
  const double pairs = pairs_per_token(x.x.rows(), x.length, x.chunk);
  return {2 * tokens * (2 * inner * static_cast<double>(x.state) + pairs * (inner + wide)),
          bytes_of(x.x, x.B, x.C, x.dt, x.y) + 2 * bytes(x.states)};
}
// Backward 4 with the state, 2 with the pairs of every head, 3 of every group.
OperationCost cost_of(const StateScanBackward& x) {
  const StateScan& f = x.forward;
  const auto tokens = static_cast<double>(f.x.rows());
  const double inner = static_cast<double>(f.heads * f.dim), wide = static_cast<double>(f.groups * f.state);
  const double pairs = pairs_per_token(f.x.rows(), f.length, f.chunk);
  return {2 * tokens * (4 * inner * static_cast<double>(f.state) + pairs * (2 * inner + 3 * wide)),
          bytes_of(f.x, f.B, f.C, f.dt, x.dy, x.dx, x.dB, x.dC, x.ddt) + 3 * bytes(f.states)};
}
OperationCost cost_of(const GatedNorm& x) { return pass(10, x.x, x.z, x.y, x.weight, x.inverse); }
OperationCost cost_of(const GatedNormBackward& x) {
  return pass(30, x.forward.x, x.forward.z, x.dy, x.dx, x.dz, x.dweight);
}
OperationCost cost_of(const GatedNormSums& x) { return pass(8, x.forward.x, x.forward.z, x.dy, x.sums); }
OperationCost cost_of(const L2Norm& x) { return pass(3, x.x, x.y); }
OperationCost cost_of(const L2NormBackward& x) { return pass(7, x.forward.x, x.dy, x.dx); }
// Forward 3 products with the state of every value head, 2 with its pairs (solving, reading), 2 of every key head; the
// triangular inverse is chunk^2 / 6 per token.
OperationCost cost_of(const DeltaRule& x) {
  const auto tokens = static_cast<double>(x.q.rows());
  const double values = static_cast<double>(x.heads * x.value_dim), keys = static_cast<double>(x.key_heads * x.dim);
  const double pairs = pairs_per_token(x.q.rows(), x.length, x.chunk);
  const double inverse = static_cast<double>(x.heads) * pairs * pairs * 2 / 3;
  return {2 * tokens * (3 * values * static_cast<double>(x.dim) + pairs * (2 * values + 2 * keys) + inverse),
          bytes_of(x.q, x.k, x.v, x.a, x.b, x.y) + 2 * bytes(x.states)};
}
// Backward computes forward's again but for the output (2 with the state, 1 with the pairs), then 6 and 4 of its own; of
// every key head 2 again and 4.
OperationCost cost_of(const DeltaRuleBackward& x) {
  const DeltaRule& f = x.forward;
  const auto tokens = static_cast<double>(f.q.rows());
  const double values = static_cast<double>(f.heads * f.value_dim), keys = static_cast<double>(f.key_heads * f.dim);
  const double pairs = pairs_per_token(f.q.rows(), f.length, f.chunk);
  const double inverse = static_cast<double>(f.heads) * pairs * pairs * 2 / 3;
  return {2 * tokens * (8 * values * static_cast<double>(f.dim) + pairs * (5 * values + 6 * keys) + inverse),
          bytes_of(f.q, f.k, f.v, x.dy, x.dq, x.dk, x.dv, x.da, x.db) + bytes(f.states)};
}
OperationCost cost_of(const SigmoidGate& x) { return pass(6, x.x, x.gate, x.y); }
OperationCost cost_of(const SigmoidGateBackward& x) { return pass(8, x.x, x.gate, x.dy, x.dx, x.dgate); }
OperationCost cost_of(const ChooseKeys& x) {
  return {index_flops(x.indexer, pairs(x.indexer.q.rows(), x.length, 0)),
          bytes_of(x.indexer.q, x.indexer.k, x.indexer.w, x.keys)};
}
OperationCost cost_of(const SparseAttention& x) {
  const Attention& a = x.attention;
  return {chosen_flops(x), bytes_of(a.q, a.k, a.v, a.out, a.lse, x.keys)};
}
OperationCost cost_of(const SparseAttentionBackward& x) {
  const Attention& a = x.forward.attention;
  return {2.5 * chosen_flops(x.forward),
          bytes_of(a.q, a.k, a.v, a.out, a.lse, x.forward.keys, x.dout, x.dq, x.dk, x.dv)};
}
OperationCost cost_of(const AttentionMeans& x) {
  const Attention& a = x.attention.attention;
  return {2 * chosen_pairs(x.attention) * static_cast<double>(a.heads * a.dim),
          bytes_of(a.q, a.k, a.lse, x.attention.keys, x.means)};
}
OperationCost cost_of(const IndexerLoss& x) {
  const Attention& a = x.attention.attention;
  if (x.means.given()) {
    const double part = static_cast<double>(x.queries) / static_cast<double>(std::max<std::int64_t>(x.dq.rows(), 1));
    return {3 * part * index_flops(x.indexer, chosen_pairs(x.attention)),
            bytes_of(x.indexer.q, x.indexer.k, x.indexer.w, x.attention.keys, x.dq, x.dk, x.dw, x.means)};
  }
  const double chosen = chosen_pairs(x.attention);
  return {3 * index_flops(x.indexer, chosen) + 2 * chosen * static_cast<double>(a.heads * a.dim),
          bytes_of(x.indexer.q, x.indexer.k, x.indexer.w, a.q, a.k, x.attention.keys, x.dq, x.dk, x.dw, x.scratch)};
}
OperationCost cost_of(const Activation& x) { return pass(8, x.x, x.y, x.scale); }
OperationCost cost_of(const ActivationBackward& x) { return pass(12, x.x, x.dy, x.dx, x.scale, x.dscale); }
OperationCost cost_of(const Router& x) { return pass(6, x.logits, x.scores, x.weights, x.indices); }
OperationCost cost_of(const RouterBackward& x) { return pass(6, x.scores, x.dlogits, x.weights, x.dweights); }
OperationCost cost_of(const CountExperts& x) { return pass(1, x.scores, x.indices, x.counts); }
OperationCost cost_of(const DropChoices& x) { return pass(0, x.indices, x.weights, x.kept); }
OperationCost cost_of(const BalanceLosses& x) { return pass(6, x.dlogits, x.scores, x.logits); }
OperationCost cost_of(const UpdateExpertBias&) { return {}; }
OperationCost cost_of(const RouteRows& x) { return pass(0, x.indices, x.row_of_slot, x.slot_of_row, x.counts); }
OperationCost cost_of(const ArrangeRows& x) { return pass(0, x.source_counts, x.received_of_row, x.row_of_received); }
OperationCost cost_of(const CopyChoices& x) { return pass(0, x.indices, x.y); }
OperationCost cost_of(const GatherRows& x) { return {0, 2 * bytes(x.y) + bytes(x.index)}; }
OperationCost cost_of(const SumRows& x) { return {elements(x.x), bytes_of(x.x, x.y, x.residual, x.extra, x.index)}; }
OperationCost cost_of(const Embedding& x) { return {0, 2 * bytes(x.y)}; }
OperationCost cost_of(const EmbeddingGradient& x) {
  return {elements(x.dy), 2 * bytes(x.dy) + (x.store == Store::write ? bytes(x.dweight) : bytes(x.dy))};
}
OperationCost cost_of(const Shift& x) { return pass(0, x.x, x.y); }
OperationCost cost_of(const CrossEntropy& x) { return pass(6, x.logits, x.dlogits); }
OperationCost cost_of(const LocalTokens& x) { return pass(0, x.tokens, x.y); }
OperationCost cost_of(const VocabularyStatistics& x) { return pass(3, x.logits, x.statistics); }
OperationCost cost_of(const SplitCrossEntropy& x) { return pass(3, x.logits, x.dlogits, x.statistics); }
OperationCost cost_of(const Add& x) { return pass(1, x.y, x.a, x.b); }
OperationCost cost_of(const Cast& x) { return pass(0, x.x, x.y); }
OperationCost cost_of(const Fill& x) { return pass(0, x.y); }
OperationCost cost_of(const SumOfSquares& x) {
  OperationCost cost;
  for (const Tensor& t : x.x) {
    cost.flops += 2 * elements(t);
    cost.bytes += bytes(t);
  }
  return cost;
}
OperationCost cost_of(const ClipFactor&) { return {}; }
OperationCost cost_of(const AdamW& x) {
  OperationCost cost;
  for (const AdamSlab& s : x.slabs) {
    cost.flops += 14 * elements(s.weight);
    cost.bytes += bytes(s.gradient) + 2 * bytes_of(s.weight, s.remainder, s.m, s.v);
  }
  return cost;
}
OperationCost cost_of(const Sgd& x) {
  OperationCost cost;
  for (const SgdSlab& s : x.slabs) {
    cost.flops += (s.momentum.given() ? 7 : 5) * elements(s.weight);
    cost.bytes += bytes(s.gradient) + 2 * bytes_of(s.weight, s.remainder, s.momentum);
  }
  return cost;
}

}  // namespace weft
