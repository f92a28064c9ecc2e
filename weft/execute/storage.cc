#include "weft/execute/storage.h"

#include <cstring>

#include "weft/base/error.h"

namespace weft {

namespace {

constexpr std::size_t alignment = 256;

template <class T>
void pack_as(std::span<const double> values, std::byte* out) {
  auto* to = reinterpret_cast<T*>(out);
  for (std::size_t i = 0; i < values.size(); ++i) {
    if constexpr (std::is_same_v<T, bfloat16>) {
      to[i] = bfloat16(static_cast<float>(values[i]));
    } else {
      to[i] = static_cast<T>(values[i]);
    }
  }
}

template <class T>
void unpack_as(const std::byte* in, std::span<double> values) {
  const auto* from = reinterpret_cast<const T*>(in);
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<double>(from[i]);
}

}  // namespace

std::vector<std::byte> pack(std::span<const double> values, DType dtype) {
  std::vector<std::byte> bytes(values.size() * size_of(dtype));
  switch (dtype) {
    case DType::f32:
      pack_as<float>(values, bytes.data());
      break;
    case DType::f64:
      pack_as<double>(values, bytes.data());
      break;
    case DType::bf16:
      pack_as<bfloat16>(values, bytes.data());
      break;
    default:
      WEFT_CHECK(false, "pack to {}", name_of(dtype));
  }
  return bytes;
}

std::vector<double> unpack(std::span<const std::byte> bytes, DType dtype) {
  std::vector<double> values(bytes.size() / size_of(dtype));
  switch (dtype) {
    case DType::f32:
      unpack_as<float>(bytes.data(), values);
      break;
    case DType::f64:
      unpack_as<double>(bytes.data(), values);
      break;
    case DType::bf16:
      unpack_as<bfloat16>(bytes.data(), values);
      break;
    case DType::i32:
      unpack_as<std::int32_t>(bytes.data(), values);
      break;
    default:
      WEFT_CHECK(false, "unpack from {}", name_of(dtype));
  }
  return values;
}

ModelStorage::ModelStorage(Device& device, const Module& module) : device_(device), state_ids_(module.states) {
  std::size_t end = 0;
  std::vector<std::size_t> offsets;
  const auto reserve = [&](const Value& value) {
    const Tensor tensor(nullptr, value.dtype, value.shape);
    offsets.push_back(end);
    end += (tensor.bytes() + alignment - 1) / alignment * alignment;
    return tensor;
  };
  const bool trains = !module.updates.empty();
  for (ValueId id : module.parameter_values) weights_.push_back(reserve(module.value(id)));
  if (trains)
    for (ValueId id : module.gradient_values) gradients_.push_back(id.valid() ? reserve(module.value(id)) : Tensor{});
  states_.resize(module.values.size());
  std::vector<ValueId> states;
  for (const ParameterStates& s : module.states)
    for (ValueId id : {s.m, s.v, s.remainder})
      if (id.valid()) states.push_back(id);
  for (ValueId id : states) states_[id.index()] = reserve(module.value(id));

  memory_ = device.allocate(end);
  std::size_t next = 0;
  for (Tensor& tensor : weights_) tensor.data = memory_->data() + offsets[next++];
  for (Tensor& tensor : gradients_)
    if (tensor.given()) tensor.data = memory_->data() + offsets[next++];
  for (ValueId id : states) states_[id.index()].data = memory_->data() + offsets[next++];
}

const Tensor& ModelStorage::gradient(TensorId id) const {
  WEFT_CHECK(!gradients_.empty(), "a module without updates has no gradients");
  return gradients_[id.index()];
}

const Tensor& ModelStorage::state(ValueId value) const {
  WEFT_CHECK(value.valid() && states_[value.index()].given(), "value {} is no state", value.value);
  return states_[value.index()];
}

std::size_t ModelStorage::bytes() const { return memory_->bytes(); }

std::vector<double> ModelStorage::read(Stream& stream, const Tensor& tensor) const {
  std::vector<std::byte> bytes(tensor.bytes());
  device_.copy_out(stream, bytes.data(), tensor.data, bytes.size());
  stream.synchronize();
  return unpack(bytes, tensor.dtype);
}

void ModelStorage::write(Stream& stream, const Tensor& tensor, std::span<const double> values) const {
  WEFT_CHECK(std::ssize(values) == tensor.shape.elements(), "{} values for {}", values.size(), to_text(tensor.shape));
  const std::vector<std::byte> bytes = pack(values, tensor.dtype);
  device_.copy_in(stream, tensor.data, bytes.data(), bytes.size());
  stream.synchronize();
}

void ModelStorage::write_parameter(Stream& stream, TensorId id, std::span<const double> values) const {
  const ParameterStates s = state_ids_.empty() ? ParameterStates{} : state_ids_[id.index()];
  if (weight(id).dtype == DType::bf16)
    write_split(stream, weight(id), s.remainder.valid() ? state(s.remainder) : Tensor{}, values);
  else
    write(stream, weight(id), values);
  if (!s.m.valid()) return;
  const std::vector<double> zeros(values.size());
  write(stream, state(s.m), zeros);
  write(stream, state(s.v), zeros);
}

std::vector<double> ModelStorage::read_parameter(Stream& stream, TensorId id) const {
  if (!state_ids_.empty() && state_ids_[id.index()].remainder.valid())
    return read_split(stream, weight(id), state(state_ids_[id.index()].remainder));
  return read(stream, weight(id));
}

// Weights are rounded the same way whether their remainders are kept or not.
void ModelStorage::write_split(Stream& stream, const Tensor& weight, const Tensor& remainder,
                               std::span<const double> values) const {
  WEFT_CHECK(std::ssize(values) == weight.shape.elements(), "{} values for {}", values.size(), to_text(weight.shape));
  std::vector<bfloat16> weights(values.size());
  std::vector<std::int16_t> remainders(values.size());
  for (std::size_t i = 0; i < values.size(); ++i) {
    const SplitFloat split = split_float(static_cast<float>(values[i]));
    weights[i] = split.weight;
    remainders[i] = split.remainder;
  }
  device_.copy_in(stream, weight.data, weights.data(), weight.bytes());
  if (remainder.given()) device_.copy_in(stream, remainder.data, remainders.data(), remainder.bytes());
  stream.synchronize();
}

std::vector<double> ModelStorage::read_split(Stream& stream, const Tensor& weight, const Tensor& remainder) const {
  std::vector<double> values(static_cast<std::size_t>(weight.shape.elements()));
  std::vector<bfloat16> weights(values.size());
  std::vector<std::int16_t> remainders(values.size());
  device_.copy_out(stream, weights.data(), weight.data, weight.bytes());
  device_.copy_out(stream, remainders.data(), remainder.data, remainder.bytes());
  stream.synchronize();
  for (std::size_t i = 0; i < values.size(); ++i)
    values[i] = static_cast<double>(join_float({weights[i], remainders[i]}));
  return values;
}

}  // namespace weft
