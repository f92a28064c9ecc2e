// The logical shapes of a model's parameters, as its config gives them: what a tensor on disk is compared with.
#pragma once

#include <optional>

#include "weft/base/shape.h"
#include "weft/model/config.h"
#include "weft/model/parameters.h"

namespace weft {

// Of a layer of this kind, or without a symbol of the model itself; nothing where the model has no such parameter.
std::optional<Shape> parameter_shape(const ModelConfig& config, std::optional<Symbol> symbol, int physical, Role role);

// Parts of it. (recurrent_shapes.cc)
std::optional<Shape> mamba_shape(const MambaSpec& spec, std::int64_t hidden, Role role);
std::optional<Shape> delta_net_shape(const DeltaNetSpec& spec, std::int64_t hidden, Role role);

}  // namespace weft
