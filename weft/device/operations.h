// The one table of operations. cpu/ and cuda/ fill it; null/ counts what it is asked for.
//
// Contracts, made for a GPU:
// - an operation never hands a size or a value back to the host: counts, offsets, scalars that change between steps
//   (learning rate, clip factor, ...) are read from device memory. Arguments hold only what is fixed for a plan;
// - an operation allocates nothing: scratch memory is an argument;
// - results do not depend on timing: sums have a fixed order;
// - rows of a routed tensor beyond the count in use are neither read nor written;
// - "acc" below is double for double tensors and float for float and bfloat16 ones. Inside, everything is added up in
//   acc and rounded once when stored;
// - optional tensors are absent when default-made (Tensor::given());
// - token index = batch * length + position.
//
// One header per family, so that a kernel sees only what it implements.
#pragma once

#include "weft/device/operations/activation.h"
#include "weft/device/operations/attention.h"
#include "weft/device/operations/attention_block.h"
#include "weft/device/operations/balance.h"
#include "weft/device/operations/elementwise.h"
#include "weft/device/operations/latent.h"
#include "weft/device/operations/loss.h"
#include "weft/device/operations/matmul.h"
#include "weft/device/operations/norms.h"
#include "weft/device/operations/optimizer.h"
#include "weft/device/operations/recurrent.h"
#include "weft/device/operations/router.h"
#include "weft/device/operations/rows.h"
#include "weft/device/operations/sparse_attention.h"

namespace weft {

// name in the table, type of the arguments
#define WEFT_OPERATIONS(X)                                               \
  X(matmul, Matmul)                                                      \
  X(grouped_matmul, GroupedMatmul)                                       \
  X(column_sum, ColumnSum)                                               \
  X(grouped_column_sum, GroupedColumnSum)                                \
  X(grouped_bias, GroupedBias)                                           \
  X(grouped_bias_gradient, GroupedBiasGradient)                          \
  X(grouped_bias_scale_gradient, GroupedBiasScaleGradient)               \
  X(rms_norm, RmsNorm)                                                   \
  X(rms_norm_backward, RmsNormBackward)                                  \
  X(layer_norm, LayerNorm)                                               \
  X(layer_norm_backward, LayerNormBackward)                              \
  X(layer_norm_weight_gradient, LayerNormWeightGradient)                 \
  X(rotary, Rotary)                                                      \
  X(latent_heads, LatentHeads)                                           \
  X(latent_heads_backward, LatentHeadsBackward)                          \
  X(attention, Attention)                                                \
  X(attention_backward, AttentionBackward)                               \
  X(visible_keys, VisibleKeys)                                           \
  X(attention_block, AttentionBlock)                                     \
  X(attention_delta, AttentionDelta)                                     \
  X(attention_block_backward, AttentionBlockBackward)                    \
  X(choose_keys, ChooseKeys)                                             \
  X(sparse_attention, SparseAttention)                                   \
  X(sparse_attention_backward, SparseAttentionBackward)                  \
  X(attention_means, AttentionMeans)                                     \
  X(indexer_loss, IndexerLoss)                                           \
  X(causal_convolution, CausalConvolution)                               \
  X(causal_convolution_backward, CausalConvolutionBackward)              \
  X(causal_convolution_weight_gradient, CausalConvolutionWeightGradient) \
  X(state_scan, StateScan)                                               \
  X(state_scan_backward, StateScanBackward)                              \
  X(gated_norm, GatedNorm)                                               \
  X(gated_norm_backward, GatedNormBackward)                              \
  X(gated_norm_sums, GatedNormSums)                                      \
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
  X(copy_choices, CopyChoices)                                           \
  X(gather_rows, GatherRows)                                             \
  X(sum_rows, SumRows)                                                   \
  X(embedding, Embedding)                                                \
  X(embedding_gradient, EmbeddingGradient)                               \
  X(shift, Shift)                                                        \
  X(cross_entropy, CrossEntropy)                                         \
  X(local_tokens, LocalTokens)                                           \
  X(vocabulary_statistics, VocabularyStatistics)                         \
  X(split_cross_entropy, SplitCrossEntropy)                              \
  X(add, Add)                                                            \
  X(cast, Cast)                                                          \
  X(fill, Fill)                                                          \
  X(sum_of_squares, SumOfSquares)                                        \
  X(clip_factor, ClipFactor)                                             \
  X(adamw, AdamW)                                                        \
  X(sgd, Sgd)

class Stream;

// Null where a device lacks the operation; a plan that needs it is refused when it is prepared.
struct Operations {
#define WEFT_ENTRY(name, Arguments) void (*name)(Stream&, const Arguments&) = nullptr;
  WEFT_OPERATIONS(WEFT_ENTRY)
#undef WEFT_ENTRY
};

}  // namespace weft
