// The operations of the CUDA device. Each is defined in kernels/, matmul in blas.cc.
#pragma once

#include "weft/device/operations.h"

namespace weft::cuda {

#define WEFT_CUDA_OPERATIONS(X)                            \
  X(matmul, Matmul)                                        \
  X(grouped_matmul, GroupedMatmul)                         \
  X(column_sum, ColumnSum)                                 \
  X(grouped_column_sum, GroupedColumnSum)                  \
  X(grouped_bias, GroupedBias)                             \
  X(grouped_bias_gradient, GroupedBiasGradient)            \
  X(grouped_bias_scale_gradient, GroupedBiasScaleGradient) \
  X(rms_norm, RmsNorm)                                     \
  X(rms_norm_backward, RmsNormBackward)                    \
  X(rms_norm_weight_gradient, RmsNormWeightGradient)       \
  X(rotary, Rotary)                                        \
  X(latent_heads, LatentHeads)                             \
  X(latent_heads_backward, LatentHeadsBackward)            \
  X(attention, Attention)                                  \
  X(attention_backward, AttentionBackward)                 \
  X(activation, Activation)                                \
  X(activation_backward, ActivationBackward)               \
  X(router, Router)                                        \
  X(router_backward, RouterBackward)                       \
  X(count_experts, CountExperts)                           \
  X(drop_choices, DropChoices)                             \
  X(balance_losses, BalanceLosses)                         \
  X(update_expert_bias, UpdateExpertBias)                  \
  X(route_rows, RouteRows)                                 \
  X(arrange_rows, ArrangeRows)                             \
  X(gather_rows, GatherRows)                               \
  X(sum_rows, SumRows)                                     \
  X(embedding, Embedding)                                  \
  X(embedding_gradient, EmbeddingGradient)                 \
  X(shift, Shift)                                          \
  X(cross_entropy, CrossEntropy)                           \
  X(add, Add)                                              \
  X(cast, Cast)                                            \
  X(fill, Fill)                                            \
  X(sum_of_squares, SumOfSquares)                          \
  X(clip_factor, ClipFactor)                               \
  X(adamw, AdamW)

// Those that the table of operations has and this list lacks stay null: a plan that uses one is refused.
#define WEFT_DECLARE(name, Arguments) void name(Stream&, const Arguments&);
WEFT_CUDA_OPERATIONS(WEFT_DECLARE)
#undef WEFT_DECLARE

void fill_table(Operations& table);
// A kernel of ours, to ask whether this build has code for a GPU.
const void* any_kernel();

}  // namespace weft::cuda
