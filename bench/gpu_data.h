// A GPU with a stream, and tensors on it for benchmarks: random ones, since zeros cost less power.
#pragma once

#include <algorithm>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <string>
#include <vector>

#include "weft/base/random.h"
#include "weft/device/cuda_device.h"
#include "weft/device/operations.h"

namespace weft {

class GpuData {
 public:
  GpuData() : device_(make_cuda_device()), stream_(device_->make_stream(1)) {
    std::vector<float> numbers(block);
    const std::uint64_t key = random_key(1, "gpu_data");
    for (std::size_t i = 0; i < numbers.size(); ++i) numbers[i] = static_cast<float>(random_normal(key, i));
    numbers_ = device_->allocate(block * sizeof(float));
    device_->copy_in(*stream_, numbers_->data(), numbers.data(), block * sizeof(float));
    stream_->synchronize();
  }

  Device& device() { return *device_; }
  const Operations& ops() const { return device_->operations(); }
  Stream& stream() { return *stream_; }

  Tensor empty(DType dtype, const Shape& shape) {
    const Tensor view(nullptr, dtype, shape);
    memory_.push_back(device_->allocate(std::max<std::size_t>(view.bytes(), 256)));
    return Tensor(memory_.back()->data(), dtype, shape);
  }
  // Normal, from one block of numbers.
  Tensor random(DType dtype, const Shape& shape) {
    const Tensor x = empty(dtype, shape);
    const Tensor from(numbers_->data(), DType::f32, {block});
    const Tensor flat(x.data, dtype, {shape.elements()});
    for (std::int64_t at = 0; at < shape.elements(); at += block) {
      const std::int64_t n = std::min<std::int64_t>(block, shape.elements() - at);
      ops().cast(*stream_, {from.slice_rows(0, n), flat.slice_rows(at, n)});
    }
    return x;
  }
  Tensor filled(DType dtype, const Shape& shape, double value) {
    const Tensor x = empty(dtype, shape);
    ops().fill(*stream_, {x, value});
    return x;
  }
  Tensor integers(const std::vector<std::int32_t>& values) {
    const Tensor x = empty(DType::i32, {static_cast<std::int64_t>(values.size())});
    device_->copy_in(*stream_, x.data, values.data(), x.bytes());
    stream_->synchronize();
    return x;
  }
  // Gives back all tensors but the first `kept`.
  void forget(std::ptrdiff_t kept = 0) {
    stream_->synchronize();
    memory_.erase(memory_.begin() + kept, memory_.end());
  }

 private:
  static constexpr std::int64_t block = (1 << 22) + 1021;
  std::unique_ptr<Device> device_;
  std::unique_ptr<Stream> stream_;
  std::unique_ptr<Memory> numbers_;
  std::vector<std::unique_ptr<Memory>> memory_;
};

inline double bytes_of(std::initializer_list<const Tensor*> tensors) {
  double sum = 0;
  for (const Tensor* t : tensors) sum += static_cast<double>(t->bytes());
  return sum;
}

// Whether one of the words on the command line is part of a case's name. Without words: all are wanted.
inline bool is_wanted(const std::string& name, const std::vector<std::string>& words) {
  return words.empty() || std::any_of(words.begin(), words.end(),
                                      [&](const std::string& word) { return name.find(word) != std::string::npos; });
}

// The optimizer's tensors for `count` parameters in bf16, in slabs.
inline std::vector<AdamSlab> adam_slabs(GpuData& data, std::int64_t count, int slabs, DType gradients) {
  std::vector<AdamSlab> made;
  for (int i = 0; i < slabs; ++i) {
    const Shape shape{count / slabs};
    made.push_back({data.random(DType::bf16, shape), data.filled(DType::i16, shape, 100),
                    data.random(DType::f32, shape), data.filled(DType::f32, shape, 0.5),
                    data.random(gradients, shape)});
  }
  return made;
}

// 8192 tokens with eight of 64 experts each, evenly.
struct Routing {
  static constexpr std::int64_t tokens = 8192, k = 8, experts = 64, rows = tokens * k;
  RouteRows route;
};
inline Routing even_routing(GpuData& data) {
  std::vector<std::int32_t> choices;
  for (std::int64_t t = 0; t < Routing::tokens; ++t)
    for (std::int64_t j = 0; j < Routing::k; ++j)
      choices.push_back(static_cast<std::int32_t>((t * 37 + j * 8 + t / 64) % Routing::experts));
  const Shape slots{Routing::tokens, Routing::k};
  const auto numbers = [&](const Shape& shape) { return data.empty(DType::i32, shape); };
  return {{data.integers(choices).reshape(slots), numbers({Routing::experts}), numbers({Routing::experts + 1}),
           numbers(slots), numbers({Routing::rows}), numbers({1})}};
}

}  // namespace weft
