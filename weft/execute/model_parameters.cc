#include "weft/execute/model_parameters.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "weft/base/error.h"
#include "weft/model/box_pieces.h"

namespace weft {

namespace {

constexpr std::size_t piece_bytes = 4 << 20;
std::int64_t piece_elements(DType type) { return static_cast<std::int64_t>(piece_bytes / size_of(type)); }

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

// The opposite. Weights are rounded the same way whether their remainders are kept or not: null.
void split(const std::byte* floats, std::byte* weights, std::byte* remainders, std::int64_t count) {
  for (std::int64_t i = 0; i < count; ++i) {
    const auto at = static_cast<std::size_t>(i);
    float value = 0;
    std::memcpy(&value, floats + at * sizeof(value), sizeof(value));
    const SplitFloat parts = split_float(value);
    std::memcpy(weights + at * sizeof(parts.weight), &parts.weight, sizeof(parts.weight));
    if (remainders) std::memcpy(remainders + at * sizeof(parts.remainder), &parts.remainder, sizeof(parts.remainder));
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

std::byte* address(const Tensor& of, std::int64_t element) {
  return static_cast<std::byte*>(of.data) + static_cast<std::size_t>(element) * size_of(of.dtype);
}

// Calls visit(piece, first, count) for pieces of a part in its order, each a part that lies by itself, row-major.
template <class Visit>
void each_piece(const ParameterPart& part, DType type, const Visit& visit) {
  std::int64_t first = 0;
  for (const Box& box : pieces_of(part.box, piece_elements(type))) {
    ParameterPart piece = part;
    piece.box = box;
    piece.place = {};
    visit(piece, first, piece.elements());
    first += piece.elements();
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
    case Content::momentum:
      return state(states.momentum);
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
  const auto copy = [&](const Tensor& from, std::int64_t begin, std::int64_t elements, std::byte* to) {
    const std::size_t size = size_of(from.dtype);
    each_range(part, begin, elements, [&](std::int64_t at, std::int64_t here, std::int64_t done) {
      device_.copy_out(stream_, to + static_cast<std::size_t>(done) * size, address(from, at),
                       static_cast<std::size_t>(here) * size);
    });
  };
  if (type == tensor.dtype) {
    copy(tensor, first, count, out.data());
    stream_.synchronize();
    return out;
  }
  const auto most = static_cast<std::size_t>(std::min(count, piece_elements(type)));
  std::vector<std::byte> weights(most * size_of(tensor.dtype));
  std::vector<std::byte> remainders(remainder ? most * size_of(remainder->dtype) : 0);
  for (std::int64_t done = 0; done < count;) {
    const std::int64_t here = std::min(count - done, piece_elements(type));
    copy(tensor, first + done, here, weights.data());
    if (remainder) copy(*remainder, first + done, here, remainders.data());
    stream_.synchronize();
    join(weights.data(), remainder ? remainders.data() : nullptr,
         out.data() + static_cast<std::size_t>(done) * size_of(type), here);
    done += here;
  }
  return out;
}

void ModelParameters::write(TensorId id, Content content, const ParameterPart& part, std::int64_t first,
                            std::int64_t count, std::span<const std::byte> values) const {
  const DType type = type_of(id, content);
  const Tensor& tensor = *tensor_of(id, content);
  WEFT_CHECK(values.size() == static_cast<std::size_t>(count) * size_of(type), "{} bytes for {} {} of {}",
             values.size(), count, name_of(type), module_.parameters[id.index()].name);
  const Tensor* const remainder = type == tensor.dtype ? nullptr : remainder_of(id);
  if (!device_.asynchronous()) {
    each_range(part, first, count, [&](std::int64_t at, std::int64_t here, std::int64_t done) {
      const std::byte* const from = values.data() + static_cast<std::size_t>(done) * size_of(type);
      if (type != tensor.dtype)
        split(from, address(tensor, at), remainder ? address(*remainder, at) : nullptr, here);
      else
        std::memcpy(address(tensor, at), from, static_cast<std::size_t>(here) * size_of(type));
    });
    return;
  }
  const auto copy = [&](const Tensor& to, std::int64_t begin, std::int64_t elements, const std::byte* from) {
    const std::size_t size = size_of(to.dtype);
    each_range(part, begin, elements, [&](std::int64_t at, std::int64_t here, std::int64_t done) {
      device_.copy_in(stream_, address(to, at), from + static_cast<std::size_t>(done) * size,
                      static_cast<std::size_t>(here) * size);
    });
  };
  if (type == tensor.dtype) {
    copy(tensor, first, count, values.data());
    stream_.synchronize();
    return;
  }
  const auto most = static_cast<std::size_t>(std::min(count, piece_elements(type)));
  std::vector<std::byte> weights(most * size_of(tensor.dtype));
  std::vector<std::byte> remainders(remainder ? most * size_of(remainder->dtype) : 0);
  for (std::int64_t done = 0; done < count;) {
    const std::int64_t here = std::min(count - done, piece_elements(type));
    split(values.data() + static_cast<std::size_t>(done) * size_of(type), weights.data(),
          remainder ? remainders.data() : nullptr, here);
    copy(tensor, first + done, here, weights.data());
    if (remainder) copy(*remainder, first + done, here, remainders.data());
    stream_.synchronize();  // the next piece takes the same memory
    done += here;
  }
}

void ModelParameters::write(TensorId id, Content content, const ParameterPart& part, const Source& source) const {
  HostTensor values(type_of(id, content), 0);
  each_piece(part, values.dtype, [&](const ParameterPart& piece, std::int64_t first, std::int64_t count) {
    values.bytes.resize(static_cast<std::size_t>(count) * size_of(values.dtype));
    source(piece, values);
    write(id, content, part, first, count, values.bytes);
  });
}

// All of it: where parts do not fill the tensor, padding too.
void ModelParameters::clear(const Tensor& tensor) const {
  const std::vector<std::byte> zeros(std::min(tensor.bytes(), piece_bytes));
  for (std::size_t done = 0; done < tensor.bytes();) {
    const std::size_t here = std::min(tensor.bytes() - done, zeros.size());
    device_.copy_in(stream_, static_cast<std::byte*>(tensor.data) + done, zeros.data(), here);
    done += here;
  }
  stream_.synchronize();
}

void ModelParameters::set_weights(const Source& source) const {
  for (std::size_t i = 0; i < module_.parameters.size(); ++i) {
    const TensorId id(static_cast<std::int64_t>(i));
    std::int64_t elements = 0;
    for (const ParameterPart& part : module_.parameters[i].parts) elements += part.elements();
    const Tensor& weight = *tensor_of(id, Content::weight);
    if (elements < weight.shape.elements()) {  // what no part fills
      clear(weight);
      if (const Tensor* const remainder = remainder_of(id)) clear(*remainder);
    }
    for (const ParameterPart& part : module_.parameters[i].parts) write(id, Content::weight, part, source);
    for (Content state : optimizer_states)
      if (has(id, state)) clear(*tensor_of(id, state));
  }
}

void ModelParameters::each(TensorId id, Content content, const Sink& sink) const {
  HostTensor values(type_of(id, content), 0);
  for (const ParameterPart& part : module_.parameters[id.index()].parts)
    each_piece(part, values.dtype, [&](const ParameterPart& piece, std::int64_t first, std::int64_t count) {
      values.bytes.resize(static_cast<std::size_t>(count) * size_of(values.dtype));
      const std::span<const std::byte> there = read(id, content, part, first, count, values.bytes);
      if (there.data() != values.bytes.data()) std::memcpy(values.bytes.data(), there.data(), there.size());
      sink(piece, values);
    });
}

void ModelParameters::each(Content content, const Sink& sink) const {
  for (std::size_t i = 0; i < module_.parameters.size(); ++i) {
    const TensorId id(static_cast<std::int64_t>(i));
    if (has(id, content)) each(id, content, sink);
  }
}

}  // namespace weft
