// Whether a model's sizes divide among tensor ranks.
#pragma once

#include "weft/model/builder.h"

namespace weft {

// UserError naming both numbers, fields in backquotes as in check_config.
void check_tensor_ranks(const ModelConfig& config, const Pattern& pattern, const ModuleOptions& options);

}  // namespace weft
