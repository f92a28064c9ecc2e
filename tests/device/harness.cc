#include "tests/device/harness.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "weft/base/error.h"
#include "weft/base/random.h"

namespace weft {

namespace {

constexpr std::byte gap{0xA5};

double load(const std::byte* at, DType dtype) {
  const auto read = [at]<class T>(T value) {
    std::memcpy(static_cast<void*>(&value), at, sizeof value);
    return value;
  };
  switch (dtype) {
    case DType::f32:
      return static_cast<double>(read(float{}));
    case DType::f64:
      return read(double{});
    case DType::bf16:
      return static_cast<double>(static_cast<float>(read(bfloat16{})));
    case DType::i16:
      return read(std::int16_t{});
    case DType::i32:
      return read(std::int32_t{});
    default:
      throw BugError("harness: dtype not read");
  }
}

void store(std::byte* at, DType dtype, double x) {
  const auto write = [at](const auto& value) { std::memcpy(at, &value, sizeof value); };
  switch (dtype) {
    case DType::f32:
      return write(static_cast<float>(x));
    case DType::f64:
      return write(x);
    case DType::bf16:
      return write(bfloat16(static_cast<float>(x)));
    case DType::i16:
      return write(static_cast<std::int16_t>(x));
    case DType::i32:
      return write(static_cast<std::int32_t>(x));
    default:
      throw BugError("harness: dtype not written");
  }
}

}  // namespace

HostTensor::HostTensor(DType dtype, const Shape& shape, std::int64_t stride) : dtype_(dtype), shape_(shape) {
  columns_ = shape[0] > 0 ? std::max<std::int64_t>(shape.elements() / shape[0], 1) : 1;
  stride_ = stride > 0 ? stride : columns_;
  WEFT_CHECK(stride_ >= columns_, "stride {} of {}", stride, to_text(shape));
  bytes_.assign(static_cast<std::size_t>(shape[0] * stride_) * size_of(dtype), gap);
  fill(0);
}

HostTensor HostTensor::normal(DType dtype, const Shape& shape, std::string_view name, double scale,
                              std::int64_t stride) {
  HostTensor x(dtype, shape, stride);
  const std::uint64_t key = random_key(20, name);
  for (std::int64_t i = 0; i < x.elements(); ++i) x.set(i, scale * random_normal(key, static_cast<std::uint64_t>(i)));
  return x;
}

HostTensor HostTensor::of(DType dtype, const Shape& shape, const std::vector<double>& values) {
  HostTensor x(dtype, shape);
  WEFT_CHECK(static_cast<std::size_t>(x.elements()) == values.size(), "{} values for {}", values.size(),
             to_text(shape));
  for (std::int64_t i = 0; i < x.elements(); ++i) x.set(i, values[static_cast<std::size_t>(i)]);
  return x;
}

HostTensor HostTensor::integers(const std::vector<std::int32_t>& values) {
  return of(DType::i32, Shape{static_cast<std::int64_t>(values.size())}, {values.begin(), values.end()});
}

Tensor HostTensor::view() const {
  if (shape_.dims() == 0) return {};
  // Tests hand the same tensor to operations as input and as output.
  Tensor tensor(const_cast<std::byte*>(bytes_.data()), dtype_, shape_);
  tensor.stride = stride_;
  return tensor;
}

double HostTensor::at(std::int64_t index) const {
  return load(bytes_.data() + static_cast<std::size_t>(position(index)) * size_of(dtype_), dtype_);
}

void HostTensor::set(std::int64_t index, double value) {
  store(bytes_.data() + static_cast<std::size_t>(position(index)) * size_of(dtype_), dtype_, value);
}

void HostTensor::fill(double value) {
  for (std::int64_t i = 0; i < elements(); ++i) set(i, value);
}

std::vector<double> HostTensor::values() const {
  std::vector<double> all(static_cast<std::size_t>(elements()));
  for (std::int64_t i = 0; i < elements(); ++i) all[static_cast<std::size_t>(i)] = at(i);
  return all;
}

bool HostTensor::gaps_intact() const {
  if (stride_ == columns_ || shape_.dims() == 0) return true;
  const std::size_t size = size_of(dtype_);
  for (std::int64_t row = 0; row < shape_[0]; ++row) {
    const auto begin = bytes_.begin() + static_cast<std::ptrdiff_t>(static_cast<std::size_t>(row * stride_) * size);
    if (std::any_of(begin + columns_ * static_cast<std::int64_t>(size),
                    begin + stride_ * static_cast<std::int64_t>(size), [](std::byte b) { return b != gap; }))
      return false;
  }
  return true;
}

bool HostTensor::same_bits(const HostTensor& other) const {
  return dtype_ == other.dtype_ && shape_ == other.shape_ && bytes_ == other.bytes_;
}

TestDevice::TestDevice(int threads, Isa isa) : device_(isa), threads_(threads), stream_(device_.make_stream(threads)) {}

std::string TestDevice::text() const { return fmt::format("{}, {} threads", device_.name(), threads_); }

std::vector<Isa> supported_isas() {
  std::vector<Isa> isas;
  for (Isa isa : {Isa::baseline, Isa::v3, Isa::v4})
    if (supported(isa)) isas.push_back(isa);
  return isas;
}

void for_each_device(const std::function<void(TestDevice&)>& test) {
  for (Isa isa : supported_isas())
    for (int threads : {1, 2}) {
      TestDevice device(threads, isa);
      SCOPED_TRACE(device.text());
      test(device);
    }
}

double unit_roundoff(DType dtype) {
  switch (dtype) {
    case DType::f32:
      return 0x1p-24;
    case DType::f64:
      return 0x1p-53;
    case DType::bf16:
      return 0x1p-8;
    default:
      return 0;
  }
}

DType accumulator_of(DType dtype) { return dtype == DType::f64 ? DType::f64 : DType::f32; }

void expect_close(const HostTensor& got, const std::vector<double>& want, std::int64_t length,
                  const std::vector<double>& magnitudes) {
  ASSERT_EQ(static_cast<std::size_t>(got.elements()), want.size());
  double largest = 0;
  for (double x : want)
    if (std::isfinite(x)) largest = std::max(largest, std::abs(x));
  const double stored = unit_roundoff(got.dtype());
  const double sum = unit_roundoff(accumulator_of(got.dtype())) * static_cast<double>(length + 2);
  const double underflow = (got.dtype() == DType::f64 ? 0x1p-1022 : 0x1p-126) * static_cast<double>(length + 2);
  int shown = 0;
  for (std::size_t i = 0; i < want.size() && shown < 5; ++i) {
    const double x = got.at(static_cast<std::int64_t>(i));
    const double bound =
        1.01 * (stored * std::abs(want[i]) + sum * (magnitudes.empty() ? largest : magnitudes[i])) + underflow;
    const bool same = x == want[i] || (std::isnan(x) && std::isnan(want[i]));
    if (same || std::abs(x - want[i]) <= bound) continue;
    ADD_FAILURE() << fmt::format("element {} is {:.9g}, not {:.9g}: off by {:.3g}, allowed {:.3g}", i, x, want[i],
                                 x - want[i], bound);
    ++shown;
  }
  EXPECT_TRUE(got.gaps_intact()) << "written between the rows";
}

void check_gradient(const std::function<double()>& scalar, HostTensor& input, const std::vector<double>& analytic,
                    double tolerance, std::int64_t samples) {
  ASSERT_EQ(input.dtype(), DType::f64);
  ASSERT_EQ(static_cast<std::size_t>(input.elements()), analytic.size());
  double largest = 0;
  for (double x : analytic) largest = std::max(largest, std::abs(x));
  const std::int64_t count = input.elements();
  const std::int64_t step = std::max<std::int64_t>(count / samples, 1);
  int shown = 0;
  for (std::int64_t i = 0; i < count && shown < 5; i += step) {
    const double x = input.at(i), h = 1e-3 * std::max(1.0, std::abs(x));
    const auto at = [&](double value) {
      input.set(i, value);
      return scalar();
    };
    const double numeric = (8 * (at(x + h) - at(x - h)) - (at(x + 2 * h) - at(x - 2 * h))) / (12 * h);
    input.set(i, x);
    const double a = analytic[static_cast<std::size_t>(i)];
    const double bound = tolerance * std::max(std::abs(a), 0.01 * largest);
    if (std::abs(a - numeric) <= bound) continue;
    ADD_FAILURE() << fmt::format("gradient of element {} is {:.12g}, differences say {:.12g}", i, a, numeric);
    ++shown;
  }
}

double weighted_sum(const HostTensor& x, const HostTensor& weights) {
  double sum = 0;
  for (std::int64_t i = 0; i < x.elements(); ++i) sum += x.at(i) * weights.at(i);
  return sum;
}

}  // namespace weft
