// A stream that uses a part of the processors gives the same bits as one that has them all.
#include <algorithm>
#include <cmath>
#include <functional>

#include <gtest/gtest.h>

#include "weft/base/random.h"
#include "weft/device/cuda_device.h"
#include "weft/device/operations.h"

namespace weft {
namespace {

class Processors : public testing::Test {
 protected:
  Tensor make(DType dtype, const Shape& shape) {
    memory_.push_back(device_->allocate(static_cast<std::size_t>(shape.elements()) * size_of(dtype)));
    return Tensor(memory_.back()->data(), dtype, shape);
  }
  template <class T>
  Tensor put(const std::vector<T>& values, DType dtype, const Shape& shape) {
    const Tensor made = make(dtype, shape);
    device_->copy_in(*stream_, made.data, values.data(), made.bytes());
    stream_->synchronize();
    return made;
  }
  // Of any dtype, between 0.01 and 1.
  Tensor random(DType dtype, const Shape& shape, const char* name) {
    std::vector<float> values(static_cast<std::size_t>(shape.elements()));
    const std::uint64_t key = random_key(5, name);
    for (std::size_t i = 0; i < values.size(); ++i)
      values[i] = std::min(1.0f, 0.01f + std::abs(static_cast<float>(random_normal(key, i % 65521))) / 4);
    const Tensor wide = put(values, DType::f32, shape), made = make(dtype, shape);
    device_->operations().cast(*stream_, {wide, made});
    return made;
  }
  Tensor copy(const Tensor& x) {
    const Tensor made = make(x.dtype, x.shape);
    device_->operations().cast(*stream_, {x, made});
    return made;
  }
  std::vector<std::byte> bytes(const Tensor& x) {
    std::vector<std::byte> values(x.bytes());
    device_->copy_out(*stream_, values.data(), x.data, values.size());
    stream_->synchronize();
    return values;
  }
  // queue works on tensors of its own each time, and returns what it made.
  void expect_same(const std::function<std::vector<Tensor>()>& queue) {
    std::vector<std::vector<std::byte>> all;
    for (const Tensor& made : queue()) all.push_back(bytes(made));
    for (int part : {2, 40, device_->processors() - 40}) {
      stream_->use_processors(part);
      const std::vector<Tensor> made = queue();
      for (std::size_t i = 0; i < made.size(); ++i)
        EXPECT_TRUE(bytes(made[i]) == all[i]) << "result " << i << " on " << part << " processors";
    }
    stream_->use_processors(device_->processors());
  }

  std::unique_ptr<Device> device_ = make_cuda_device();
  std::unique_ptr<Stream> stream_ = device_->make_urgent_stream();
  std::vector<std::unique_ptr<Memory>> memory_;
};

TEST_F(Processors, Matmul) {
  const Tensor a = random(DType::bf16, {2048, 1024}, "a"), b = random(DType::bf16, {1536, 1024}, "b");
  const Tensor long_a = random(DType::bf16, {16384, 256}, "long a"),
               long_b = random(DType::bf16, {16384, 384}, "long b");
  const Tensor before = random(DType::f32, {256, 384}, "before");
  expect_same([&] {
    const Tensor c = make(DType::bf16, {2048, 1536}), sum = copy(before);
    device_->operations().matmul(*stream_, {a, b, c, Transposed::no, Transposed::yes});
    // A long sum with few results: one that is likely to be divided.
    device_->operations().matmul(*stream_, {long_a, long_b, sum, Transposed::yes, Transposed::no, Store::add});
    return std::vector{c, sum};
  });
}

TEST_F(Processors, GroupedMatmul) {
  using Mode = GroupedMatmul::Mode;
  const Shape all{5, 768, 512};
  const Tensor w = random(DType::bf16, all, "w"), before = random(DType::f32, all, "before");
  // On average 409 and 819 rows per expert: short and long sums have kernels of their own.
  for (const std::int32_t last : {1024, 3072}) {
    const std::int64_t rows = 1024 + last;
    const std::vector<std::int32_t> counts{700, 0, 1, 323, last}, offsets{0, 700, 700, 701, 1024, 1024 + last};
    const Groups groups{put(counts, DType::i32, {5}), put(offsets, DType::i32, {6})};
    const Tensor x = random(DType::bf16, {rows, 512}, "x");
    expect_same([&] {
      const Tensor y = make(DType::bf16, {rows, 768}), dx = make(DType::bf16, {rows, 512});
      const Tensor dw = make(DType::f32, all), narrow = make(DType::bf16, all), sum = copy(before);
      device_->operations().grouped_matmul(*stream_, {Mode::forward, x, w, y, groups});
      device_->operations().grouped_matmul(*stream_, {Mode::input_gradient, dx, w, y, groups});
      device_->operations().grouped_matmul(*stream_, {Mode::weight_gradient, x, dw, y, groups});
      device_->operations().grouped_matmul(*stream_, {Mode::weight_gradient, x, narrow, y, groups});
      device_->operations().grouped_matmul(*stream_, {Mode::weight_gradient, x, sum, y, groups, Store::add});
      return std::vector{y, dx, dw, narrow, sum};
    });
  }
}

// Weights with remainders, states and gradients of an update; every use has copies of its own.
struct UpdateCase {
  std::int64_t count;
  DType weight, gradient;
  std::int64_t begin = 0;
};
// Whole parts, parts that end early or not in packs, one element; some that begin anywhere.
const UpdateCase update_cases[] = {{1 << 20, DType::bf16, DType::f32},  {8192 * 3 + 2052, DType::bf16, DType::bf16},
                                   {8192 + 77, DType::f32, DType::f32}, {1, DType::bf16, DType::f32},
                                   {40000, DType::f32, DType::bf16},    {20000, DType::bf16, DType::bf16, 1}};

TEST_F(Processors, AdamW) {
  std::vector<double> numbers(StepValues::count);
  numbers[StepValues::learning_rate] = 1e-3, numbers[StepValues::weight_decay] = 0.1;
  numbers[StepValues::correction1] = 0.19, numbers[StepValues::correction2] = 0.0975;
  numbers[StepValues::clip_factor] = 0.7, numbers[StepValues::finite] = 1;
  const Tensor values = put(numbers, DType::f64, {StepValues::count});
  for (const UpdateCase& c : update_cases) {
    const bool split = c.weight == DType::bf16;
    const Shape shape{c.begin + c.count};
    const Tensor weight = random(c.weight, shape, "weight"), state = random(DType::f32, shape, "state");
    std::vector<std::int16_t> lower(static_cast<std::size_t>(shape.elements()));
    for (std::size_t i = 0; i < lower.size(); ++i) lower[i] = static_cast<std::int16_t>(i * 40503);
    const Tensor remainder = put(lower, DType::i16, shape);
    const Tensor gradient = random(c.gradient, shape, "gradient").slice_rows(c.begin, c.count);
    const auto from = [&](const Tensor& x) { return copy(x).slice_rows(c.begin, c.count); };
    expect_same([&] {
      AdamSlab slab{from(weight), split ? from(remainder) : Tensor{}, from(state), from(state), gradient};
      AdamSlab other{from(weight), split ? from(remainder) : Tensor{}, from(state), from(state), gradient, false};
      const std::vector<AdamSlab> slabs{slab, other};
      device_->operations().adamw(*stream_, {slabs, values});
      std::vector<Tensor> made;
      for (const AdamSlab& s : slabs)
        for (const Tensor* t : {&s.weight, &s.remainder, &s.m, &s.v})
          if (t->given()) made.push_back(*t);
      return made;
    });
  }
}

TEST_F(Processors, Sgd) {
  std::vector<double> numbers(StepValues::count);
  numbers[StepValues::learning_rate] = 1e-3, numbers[StepValues::weight_decay] = 0.1;
  numbers[StepValues::clip_factor] = 0.7, numbers[StepValues::finite] = 1;
  const Tensor values = put(numbers, DType::f64, {StepValues::count});
  for (const UpdateCase& c : update_cases) {
    const Shape shape{c.begin + c.count};
    const Tensor weight = random(c.weight, shape, "weight"), state = random(DType::f32, shape, "state");
    const Tensor remainder =
        put(std::vector<std::int16_t>(static_cast<std::size_t>(shape.elements()), 1234), DType::i16, shape);
    const Tensor gradient = random(c.gradient, shape, "gradient").slice_rows(c.begin, c.count);
    const auto from = [&](const Tensor& x) { return copy(x).slice_rows(c.begin, c.count); };
    const auto lower = [&] { return c.weight == DType::bf16 ? from(remainder) : Tensor{}; };
    expect_same([&] {
      const std::vector<SgdSlab> kept{{from(weight), lower(), from(state), gradient},
                                      {from(weight), lower(), from(state), gradient, false}};
      const std::vector<SgdSlab> plain{{from(weight), lower(), {}, gradient}};
      device_->operations().sgd(*stream_, {kept, values, 0.9});
      device_->operations().sgd(*stream_, {plain, values, 0});
      std::vector<Tensor> made;
      for (const auto* slabs : {&kept, &plain})
        for (const SgdSlab& s : *slabs)
          for (const Tensor* t : {&s.weight, &s.remainder, &s.momentum})
            if (t->given()) made.push_back(*t);
      return made;
    });
  }
}

}  // namespace
}  // namespace weft
