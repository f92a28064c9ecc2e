// Checkpoints of Megatron's form that tests make, of a model whose values are a function of content, identity and index.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "tests/checkpoint/model_folder.h"
#include "weft/checkpoint/checkpoint_reader.h"
#include "weft/checkpoint/disk_tensor.h"

namespace weft {

struct MadeTensor {
  std::string name;
  std::vector<std::int64_t> shape;
  std::vector<float> values;
  bool bf16 = false;  // written so, rounded; else F32
};
using MadeTensors = std::vector<MadeTensor>;

float rounded_to_bf16(float value);
float made_value(Content content, const ParameterIdentity& identity, std::int64_t index);
// The keys of a model, with values.
MadeTensors made_tensors(const std::vector<DiskTensor>& tensors, Content content, const std::string& prefix = "");
MadeTensor& find_made(MadeTensors& tensors, const std::string& name);
// The tensor with an axis of experts in front, as one for each, or with their rows below one another.
void cut_experts(MadeTensors& tensors, const std::string& name,
                 const std::function<std::string(std::size_t expert)>& name_of_expert);
void put_experts_below(MadeTensors& tensors, const std::string& name);
// The halves of a tensor's rows, "NAME_w" and "NAME_v".
void cut_halves(MadeTensors& tensors, const std::string& name);
// Several tensors as the rows of one.
void join_rows(MadeTensors& tensors, const std::vector<std::string>& names, const std::string& joined);

// args: pickled values of the namespace (written.h); more: entries of the shared state.
using PickledFields = std::vector<std::pair<std::string, std::string>>;
void write_made(const ModelFolder& folder, const MadeTensors& tensors, const PickledFields& args = {},
                const PickledFields& more = {});

}  // namespace weft
