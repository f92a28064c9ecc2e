// What an operation demands of its arguments on every device: that shapes and dtypes go together. A device checks for
// itself what it demands beyond that. A mismatch throws BugError "operation: why". "No tokens" marks the operations
// that also accept none.
#pragma once

#include "weft/device/operations/activation.h"
#include "weft/device/operations/attention.h"
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

// The limits of every device.
constexpr std::int64_t most_taps = 16;      // of a convolution
constexpr std::int64_t most_choices = 256;  // experts of a token

// argument_checks.cc: attention and recurrences
void check_arguments(const char* operation, const Attention& op);
void check_arguments(const char* operation, const AttentionBackward& op);

void check_arguments(const char* operation, const ChooseKeys& op);
void check_arguments(const char* operation, const SparseAttention& op);
void check_arguments(const char* operation, const SparseAttentionBackward& op);
void check_arguments(const char* operation, const AttentionMeans& op);
void check_arguments(const char* operation, const IndexerLoss& op);

void check_arguments(const char* operation, const StateScan& op);
void check_arguments(const char* operation, const StateScanBackward& op);  // no tokens
void check_arguments(const char* operation, const DeltaRule& op);
void check_arguments(const char* operation, const DeltaRuleBackward& op);  // no tokens

// argument_checks_rows.cc: operations on rows, all of them also for no tokens unless marked
void check_arguments(const char* operation, const RmsNorm& op);
void check_arguments(const char* operation, const RmsNormBackward& op);
void check_arguments(const char* operation, const LayerNorm& op);
void check_arguments(const char* operation, const LayerNormBackward& op);
void check_arguments(const char* operation, const LayerNormWeightGradient& op);
void check_arguments(const char* operation, const GatedNorm& op);
void check_arguments(const char* operation, const GatedNormBackward& op);
void check_arguments(const char* operation, const GatedNormSums& op);
void check_arguments(const char* operation, const L2Norm& op);
void check_arguments(const char* operation, const L2NormBackward& op);

void check_arguments(const char* operation, const SigmoidGate& op);
void check_arguments(const char* operation, const SigmoidGateBackward& op);
std::int64_t gated_width(const Tensor& x, const Tensor& gate);  // how many elements of x share a gate
void check_arguments(const char* operation, const Activation& op);
void check_arguments(const char* operation, const ActivationBackward& op);

void check_arguments(const char* operation, const CausalConvolution& op);
void check_arguments(const char* operation, const CausalConvolutionBackward& op);
void check_arguments(const char* operation, const CausalConvolutionWeightGradient& op);

void check_arguments(const char* operation, const Rotary& op);
void check_arguments(const char* operation, const LatentHeads& op);          // at least one token
void check_arguments(const char* operation, const LatentHeadsBackward& op);  // at least one token

void check_arguments(const char* operation, const Router& op);          // at least one token
void check_arguments(const char* operation, const RouterBackward& op);  // at least one token
void check_arguments(const char* operation, const GroupedMatmul& op);
void check_arguments(const char* operation, const SumRows& op);  // at least one token
void check_arguments(const char* operation, const Shift& op);

// argument_checks_products.cc: products, sums and elementwise operations. Any tensor may have no elements.
void check_arguments(const char* operation, const Matmul& op);
void check_arguments(const char* operation, const ColumnSum& op);
void check_arguments(const char* operation, const GroupedColumnSum& op);
void check_arguments(const char* operation, const GroupedBias& op);
void check_arguments(const char* operation, const GroupedBiasGradient& op);
void check_arguments(const char* operation, const GroupedBiasScaleGradient& op);
void check_arguments(const char* operation, const Add& op);
void check_arguments(const char* operation, const Cast& op);

// argument_checks_routing.cc: moving rows to experts, and keeping experts busy; also for no tokens
void check_arguments(const char* operation, const RouteRows& op);
void check_arguments(const char* operation, const ArrangeRows& op);
void check_arguments(const char* operation, const CopyChoices& op);
void check_arguments(const char* operation, const GatherRows& op);
void check_arguments(const char* operation, const CountExperts& op);
void check_arguments(const char* operation, const DropChoices& op);
void check_arguments(const char* operation, const BalanceLosses& op);
void check_arguments(const char* operation, const UpdateExpertBias& op);

// argument_checks_training.cc: the two ends of a model and the optimizer; also for no tokens and empty slabs
void check_arguments(const char* operation, const Embedding& op);
void check_arguments(const char* operation, const EmbeddingGradient& op);
void check_arguments(const char* operation, const CrossEntropy& op);
void check_arguments(const char* operation, const LocalTokens& op);
void check_arguments(const char* operation, const VocabularyStatistics& op);
void check_arguments(const char* operation, const SplitCrossEntropy& op);
void check_arguments(const char* operation, const SumOfSquares& op);
void check_arguments(const char* operation, const ClipFactor& op);
void check_arguments(const char* operation, const AdamW& op);
void check_arguments(const char* operation, const Sgd& op);

}  // namespace weft
