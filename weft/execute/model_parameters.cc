#include "weft/execute/model_parameters.h"

#include <cstring>

#include "weft/base/error.h"

namespace weft {

namespace {

HostTensor joined(const HostTensor& weights, const HostTensor& remainders) {
  HostTensor floats(DType::f32, weights.elements());
  for (std::int64_t i = 0; i < floats.elements(); ++i) {
    SplitFloat split;
    std::memcpy(&split.weight, weights.at(i), sizeof(split.weight));
    if (!remainders.bytes.empty()) std::memcpy(&split.remainder, remainders.at(i), sizeof(split.remainder));
    const float value = join_float(split);
    std::memcpy(floats.at(i), &value, sizeof(value));
  }
  return floats;
}

}  // namespace

ModelParameters::ModelParameters(Device& device, const Module& module, const ModelStorage& storage, Stream& stream)
    : device_(device), module_(module), storage_(storage), stream_(stream) {}

const Tensor* ModelParameters::tensor_of(TensorId id, Content content) const {
  const ParameterStates states = module_.states.empty() ? ParameterStates{} : module_.states[id.index()];
  const auto state = [&](ValueId value) { return value.valid() ? &storage_.state(value) : nullptr; };
  switch (content) {
    case Content::weight:
      return &storage_.weight(id);
    case Content::first_moment:
      return state(states.m);
    case Content::second_moment:
      return state(states.v);
    case Content::gradient:
      return module_.updates.empty() || !module_.parameters[id.index()].trained ? nullptr : &storage_.gradient(id);
  }
  return nullptr;
}

const Tensor* ModelParameters::remainder_of(TensorId id) const {
  if (module_.states.empty() || !module_.states[id.index()].remainder.valid()) return nullptr;
  return &storage_.state(module_.states[id.index()].remainder);
}

bool ModelParameters::has(TensorId id, Content content) const { return tensor_of(id, content) != nullptr; }

DType ModelParameters::type_of(TensorId id, Content content) const {
  const Tensor* const tensor = tensor_of(id, content);
  WEFT_CHECK(tensor != nullptr, "{} has no {}", module_.parameters[id.index()].name, name_of(content));
  return content == Content::weight && tensor->dtype == DType::bf16 ? DType::f32 : tensor->dtype;
}

HostTensor ModelParameters::read(TensorId id, Content content) const {
  const DType type = type_of(id, content);
  const Tensor& tensor = *tensor_of(id, content);
  HostTensor values = storage_.read(stream_, tensor);
  if (type == tensor.dtype) return values;
  const Tensor* const remainder = remainder_of(id);
  return joined(values, remainder ? storage_.read(stream_, *remainder) : HostTensor{});
}

void ModelParameters::write(TensorId id, Content content, const HostTensor& values) const {
  const DType type = type_of(id, content);
  const Tensor& tensor = *tensor_of(id, content);
  WEFT_CHECK(values.dtype == type, "{} values for the {} of {}, which is {}", name_of(values.dtype), name_of(content),
             module_.parameters[id.index()].name, name_of(type));
  if (type == tensor.dtype) return storage_.write(stream_, tensor, values);
  // Weights are rounded the same way whether their remainders are kept or not.
  HostTensor weights(DType::bf16, values.elements()), remainders(DType::i16, values.elements());
  for (std::int64_t i = 0; i < values.elements(); ++i) {
    float value = 0;
    std::memcpy(&value, values.at(i), sizeof(value));
    const SplitFloat split = split_float(value);
    std::memcpy(weights.at(i), &split.weight, sizeof(split.weight));
    std::memcpy(remainders.at(i), &split.remainder, sizeof(split.remainder));
  }
  storage_.write(stream_, tensor, weights);
  if (const Tensor* const remainder = remainder_of(id)) storage_.write(stream_, *remainder, remainders);
}

void ModelParameters::clear(const Tensor& tensor) const {
  storage_.write(stream_, tensor, HostTensor(tensor.dtype, tensor.shape.elements()));
}

void ModelParameters::set_weights(const Source& source) const {
  for (std::size_t i = 0; i < module_.parameters.size(); ++i) {
    const TensorId id(static_cast<std::int64_t>(i));
    const ParameterTensor& tensor = module_.parameters[i];
    HostTensor values(type_of(id, Content::weight), tensor.shape.elements());
    for (const ParameterPart& part : tensor.parts) source(part, values);
    write(id, Content::weight, values);
    for (Content moment : {Content::first_moment, Content::second_moment})
      if (has(id, moment)) clear(*tensor_of(id, moment));
  }
}

void ModelParameters::each(Content content, const Sink& sink) const {
  for (std::size_t i = 0; i < module_.parameters.size(); ++i) {
    const TensorId id(static_cast<std::int64_t>(i));
    if (!has(id, content)) continue;
    const HostTensor values = read(id, content);
    for (const ParameterPart& part : module_.parameters[i].parts) sink(part, values);
  }
}

}  // namespace weft
