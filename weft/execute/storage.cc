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
    case DType::i32:
      pack_as<std::int32_t>(values, bytes.data());
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

ModelStorage::ModelStorage(Device& device, const Module& module) : device_(device) {
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
    for (ValueId id : s.all())
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
  WEFT_CHECK(value.valid() && states_[value.index()].given(), "value {} is not a state", value.value);
  return states_[value.index()];
}

std::size_t ModelStorage::bytes() const { return memory_->bytes(); }

HostTensor ModelStorage::read(Stream& stream, const Tensor& tensor) const {
  HostTensor values(tensor.dtype, tensor.shape.elements());
  device_.copy_out(stream, values.bytes.data(), tensor.data, values.bytes.size());
  stream.synchronize();
  return values;
}

void ModelStorage::write(Stream& stream, const Tensor& tensor, const HostTensor& values) const {
  WEFT_CHECK(values.dtype == tensor.dtype && values.elements() == tensor.shape.elements(), "{} {} for {} {}",
             values.elements(), name_of(values.dtype), to_text(tensor.shape), name_of(tensor.dtype));
  device_.copy_in(stream, tensor.data, values.bytes.data(), values.bytes.size());
  stream.synchronize();
}

}  // namespace weft
