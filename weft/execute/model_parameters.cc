#include "weft/execute/model_parameters.h"

#include <algorithm>
#include <cstring>

#include "weft/base/error.h"

namespace weft {

namespace {

// weights and remainders: bfloat16 and std::int16_t; no remainders: null.
void join(const std::byte* weights, const std::byte* remainders, std::byte* floats, std::int64_t count) {
  for (std::int64_t i = 0; i < count; ++i) {
    const auto at = static_cast<std::size_t>(i);
    SplitFloat split;
    std::memcpy(&split.weight, weights + at * sizeof(split.weight), sizeof(split.weight));
    if (remainders) std::memcpy(&split.remainder, remainders + at * sizeof(split.remainder), sizeof(split.remainder));
    const float value = join_float(split);
    std::memcpy(floats + at * sizeof(value), &value, sizeof(value));
  }
}

HostTensor joined(const HostTensor& weights, const HostTensor& remainders) {
  HostTensor floats(DType::f32, weights.elements());
  join(weights.bytes.data(), remainders.bytes.empty() ? nullptr : remainders.bytes.data(), floats.bytes.data(),
       floats.elements());
  return floats;
}

// The ranges of a tensor that make up elements [first, first + count) of a part's box, in their order.
template <class Visit>
void each_range(const ParameterPart& part, std::int64_t first, std::int64_t count, const Visit& visit) {
  const BoxRuns runs = part.runs();
  const std::int64_t length = runs.size() > 0 ? runs[0].count : 1;
  for (std::int64_t done = 0; done < count;) {
    const std::int64_t element = first + done, within = element % length,
                       here = std::min(length - within, count - done);
    visit(runs[element / length].tensor + within, here, done);
    done += here;
  }
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

std::span<const std::byte> ModelParameters::read(TensorId id, Content content, const ParameterPart& part,
                                                 std::int64_t first, std::int64_t count,
                                                 std::span<std::byte> buffer) const {
  const DType type = type_of(id, content);
  const Tensor& tensor = *tensor_of(id, content);
  const Tensor* const remainder = type == tensor.dtype ? nullptr : remainder_of(id);
  const std::span<std::byte> out = buffer.first(static_cast<std::size_t>(count) * size_of(type));
  const auto address = [](const Tensor& of, std::int64_t element) {
    return static_cast<const std::byte*>(of.data) + static_cast<std::size_t>(element) * size_of(of.dtype);
  };
  if (!device_.asynchronous()) {  // its memory is the host's
    const std::byte* in_place = nullptr;
    each_range(part, first, count, [&](std::int64_t at, std::int64_t here, std::int64_t done) {
      std::byte* const to = out.data() + static_cast<std::size_t>(done) * size_of(type);
      const auto bytes = static_cast<std::size_t>(here) * size_of(type);
      if (type != tensor.dtype)
        join(address(tensor, at), remainder ? address(*remainder, at) : nullptr, to, here);
      else if (here == count)
        in_place = address(tensor, at);
      else
        std::memcpy(to, address(tensor, at), bytes);
    });
    return in_place ? std::span(in_place, out.size()) : std::span<const std::byte>(out);
  }
  std::vector<std::byte> weights, remainders;  // to be joined
  if (type != tensor.dtype) {
    weights.resize(static_cast<std::size_t>(count) * size_of(tensor.dtype));
    if (remainder) remainders.resize(static_cast<std::size_t>(count) * size_of(remainder->dtype));
  }
  const auto copy = [&](const Tensor& from, std::byte* to, std::int64_t at, std::int64_t here, std::int64_t done) {
    const std::size_t size = size_of(from.dtype);
    device_.copy_out(stream_, to + static_cast<std::size_t>(done) * size, address(from, at),
                     static_cast<std::size_t>(here) * size);
  };
  each_range(part, first, count, [&](std::int64_t at, std::int64_t here, std::int64_t done) {
    copy(tensor, weights.empty() ? out.data() : weights.data(), at, here, done);
    if (remainder) copy(*remainder, remainders.data(), at, here, done);
  });
  stream_.synchronize();
  if (!weights.empty()) join(weights.data(), remainder ? remainders.data() : nullptr, out.data(), count);
  return out;
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
