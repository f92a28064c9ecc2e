// What operations demand of their arguments whichever device runs them: that shapes and dtypes go together. What one
// device demands beyond that it checks itself. BugError "operation: why" for what does not fit. At least one token, except
// where a comment says otherwise.
#pragma once

#include "weft/device/operations/attention.h"
#include "weft/device/operations/recurrent.h"
#include "weft/device/operations/sparse_attention.h"

namespace weft {

void check_arguments(const char* operation, const Attention& op);
void check_arguments(const char* operation, const AttentionBackward& op);

void check_arguments(const char* operation, const ChooseKeys& op);
void check_arguments(const char* operation, const SparseAttention& op);
void check_arguments(const char* operation, const SparseAttentionBackward& op);
void check_arguments(const char* operation, const IndexerLoss& op);

void check_arguments(const char* operation, const StateScan& op);
void check_arguments(const char* operation, const StateScanBackward& op);  // any number of tokens
void check_arguments(const char* operation, const DeltaRule& op);
void check_arguments(const char* operation, const DeltaRuleBackward& op);  // any number of tokens

}  // namespace weft
