// A small model with layers of every kind, as Megatron's checkpoints that tests make (megatron_folder_made.h) hold it.
#pragma once

#include <map>
#include <string>

#include "tests/checkpoint/megatron/megatron_folder_made.h"
#include "weft/checkpoint/megatron/megatron_checkpoint.h"
#include "weft/model/config.h"

namespace weft {

ModelConfig small_config(const std::string& pattern);
std::map<ParameterIdentity, Shape> shapes_of(const ModelConfig& config);

// Model and moments, under the keys of `tensors`.
MadeTensors made_checkpoint(const std::vector<DiskTensor>& tensors);
// The model in BF16, moments, and masters (of all bits) under optimizer.state.KIND.
MadeTensors made_bf16_checkpoint(const std::vector<DiskTensor>& tensors, const std::string& kind);

struct ExpectedValues {
  std::int64_t rows = 1 << 20;  // of the vocabulary; those after them are padding, and zero
  bool rounded = false;         // to BF16
};
// Every parameter, in whole and a box from its middle.
void expect_values(const CheckpointReader& checkpoint, Content content, const ModelConfig& config,
                   const ExpectedValues& expected = {});
// Weights and moments of all parameters with all bits, and nothing beside them.
void expect_all(const ModelFolder& folder, const ModelConfig& config);

}  // namespace weft
