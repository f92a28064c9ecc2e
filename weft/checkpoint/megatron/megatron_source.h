// A Megatron checkpoint as the source of a conversion.
#pragma once

#include <memory>
#include <string>

#include "weft/checkpoint/find_checkpoint.h"
#include "weft/checkpoint/model_source.h"

namespace weft {

// config: of the model that the checkpoint's args describe. arguments: the same as flags of Weft's, a JSON object.
std::unique_ptr<ModelSource> open_megatron(const CheckpointPlace& place, const ModelConfig& config,
                                           const std::string& arguments,
                                           MasterWeights masters = MasterWeights::where_wider);
// Of a checkpoint that Weft wrote (write_megatron), which records exactly what its model is, and keeps the small files of the
// Hugging Face folder that it came from; null: Megatron wrote it.
std::unique_ptr<ModelSource> open_megatron_of_weft(const CheckpointPlace& place,
                                                   MasterWeights masters = MasterWeights::where_wider);

// In the folder of such a checkpoint.
inline constexpr const char* megatron_side_folder = "hugging_face";

}  // namespace weft
