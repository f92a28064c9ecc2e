// The args of a Megatron run that has a given model: what --use-checkpoint-args finds in a checkpoint, there and here
// (model_flags_of_megatron).
#pragma once

#include "weft/base/json.h"
#include "weft/model/config.h"

namespace weft {

// Under the names and with the values that Megatron's parser leaves; null for None. What Megatron has no arg for is left
// out. `transformer`: of a transformer, whose layers are counted in blocks and described by moe_layer_freq; else of a hybrid
// model, whose pattern describes them.
Json megatron_model_args(const ModelConfig& config, bool transformer);

}  // namespace weft
