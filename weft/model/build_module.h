// From a config to the module of one rank.
#pragma once

#include "weft/model/builder.h"

namespace weft {

// Builds the whole model: embedding, every layer of the pattern, final norm, head.
Module build_module(const ModelConfig& config, const ModuleOptions& options);

}  // namespace weft
