// The operations of the CUDA device. Each is defined in kernels/, matmul in blas.cc.
#pragma once

#include "weft/device/operations.h"

namespace weft::cuda {

#define WEFT_CUDA_OPERATIONS(X)                                          \
  X(matmul, Matmul)                                                      \
  X(grouped_matmul, GroupedMatmul)                                       \
  X(column_sum, ColumnSum)                                               \
  X(grouped_column_sum, GroupedColumnSum)                                \
  X(grouped_bias, GroupedBias)                                           \
  X(grouped_bias_gradient, GroupedBiasGradient)                          \
  X(grouped_bias_scale_gradient, GroupedBiasScaleGradient)               \
  X(rms_norm, RmsNorm)                                                   \
  X(rms_norm_backward, RmsNormBackward)                                  \
  X(rms_norm_weight_gradient, RmsNormWeightGradient)                     \
  X(layer_norm, LayerNorm)                                               \
  X(layer_norm_backward, LayerNormBackward)                              \
  X(layer_norm_weight_gradient, LayerNormWeightGradient)                 \
  X(rotary, Rotary)                                                      \
  X(latent_heads, LatentHeads)                                           \
  X(latent_heads_backward, LatentHeadsBackward)                          \
  X(attention, Attention)                                                \
  X(attention_backward, AttentionBackward)                               \
  X(choose_keys, ChooseKeys)                                             \
  X(sparse_attention, SparseAttention)                                   \
  X(sparse_attention_backward, SparseAttentionBackward)                  \
  X(indexer_loss, IndexerLoss)                                           \
  X(causal_convolution, CausalConvolution)                               \
  X(causal_convolution_backward, CausalConvolutionBackward)              \
  X(causal_convolution_weight_gradient, CausalConvolutionWeightGradient) \
  X(state_scan, StateScan)                                               \
  X(state_scan_backward, StateScanBackward)                              \
  X(gated_norm, GatedNorm)                                               \
  X(gated_norm_backward, GatedNormBackward)                              \
  X(gated_norm_weight_gradient, GatedNormWeightGradient)                 \
  X(l2_norm, L2Norm)                                                     \
  X(l2_norm_backward, L2NormBackward)                                    \
  X(delta_rule, DeltaRule)                                               \
  X(delta_rule_backward, DeltaRuleBackward)                              \
  X(sigmoid_gate, SigmoidGate)                                           \
  X(sigmoid_gate_backward, SigmoidGateBackward)                          \
  X(activation, Activation)                                              \
  X(activation_backward, ActivationBackward)                             \
  X(router, Router)                                                      \
  X(router_backward, RouterBackward)                                     \
  X(count_experts, CountExperts)                                         \
  X(drop_choices, DropChoices)                                           \
  X(balance_losses, BalanceLosses)                                       \
  X(update_expert_bias, UpdateExpertBias)                                \
  X(route_rows, RouteRows)                                               \
  X(arrange_rows, ArrangeRows)                                           \
  X(gather_rows, GatherRows)                                             \
  X(sum_rows, SumRows)                                                   \
  X(embedding, Embedding)                                                \
  X(embedding_gradient, EmbeddingGradient)                               \
  X(shift, Shift)                                                        \
  X(cross_entropy, CrossEntropy)                                         \
  X(add, Add)                                                            \
  X(cast, Cast)                                                          \
  X(fill, Fill)                                                          \
  X(sum_of_squares, SumOfSquares)                                        \
  X(clip_factor, ClipFactor)                                             \
  X(adamw, AdamW)

// Those that the table of operations has and this list lacks stay null: a plan that uses one is refused.
#define WEFT_DECLARE(name, Arguments) void name(Stream&, const Arguments&);
WEFT_CUDA_OPERATIONS(WEFT_DECLARE)
#undef WEFT_DECLARE

void fill_table(Operations& table);
// A kernel of ours, to ask whether this build has code for a GPU.
const void* any_kernel();

}  // namespace weft::cuda
