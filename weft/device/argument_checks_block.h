// argument_checks.h for attention over one block of keys.
#pragma once

#include "weft/device/operations/attention_block.h"

namespace weft {

void check_arguments(const char* operation, const VisibleKeys& op);
void check_arguments(const char* operation, const AttentionBlock& op);
void check_arguments(const char* operation, const AttentionDelta& op);
void check_arguments(const char* operation, const AttentionBlockBackward& op);

}  // namespace weft
