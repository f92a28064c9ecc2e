// Whether a sample and a model's heads divide among context ranks.
#pragma once

#include "weft/model/builder.h"

namespace weft {

// UserError naming both numbers, fields in backquotes as in check_config.
void check_context_ranks(const ModelConfig& config, const Pattern& pattern, const ModuleOptions& options);

}  // namespace weft
