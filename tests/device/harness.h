// What every test of operations needs: tensors that own their memory, a device with a stream, comparison within bounds
// that follow from the data type and the length of the sum, and gradients by finite differences.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "weft/base/dtype.h"
#include "weft/device/cpu/device.h"
#include "weft/device/operations.h"
#include "weft/device/tensor.h"

namespace weft {

// A tensor in host memory, read and written as double whatever its dtype (i32 too). Copies are deep. With a stride,
// the elements between the rows hold a pattern, and gaps_intact() tells whether it is still there.
class HostTensor {
 public:
  HostTensor() = default;                                                // absent
  HostTensor(DType dtype, const Shape& shape, std::int64_t stride = 0);  // zeros; stride 0: contiguous rows
  // Elements scale * standard normal, a pure function of the name and the index.
  static HostTensor normal(DType dtype, const Shape& shape, std::string_view name, double scale = 1,
                           std::int64_t stride = 0);
  static HostTensor of(DType dtype, const Shape& shape, const std::vector<double>& values);
  static HostTensor integers(const std::vector<std::int32_t>& values);  // i32 [values.size()]

  Tensor view() const;
  operator Tensor() const { return view(); }
  DType dtype() const { return dtype_; }
  std::int64_t elements() const { return shape_.dims() > 0 ? shape_.elements() : 0; }

  double at(std::int64_t index) const;  // index into the logical elements, row after row
  double at(std::int64_t row, std::int64_t column) const { return at(row * columns_ + column); }
  void set(std::int64_t index, double value);
  void set(std::int64_t row, std::int64_t column, double value) { set(row * columns_ + column, value); }
  void fill(double value);
  std::vector<double> values() const;

  bool gaps_intact() const;
  bool same_bits(const HostTensor& other) const;  // including the gaps

 private:
  std::int64_t position(std::int64_t index) const { return index / columns_ * stride_ + index % columns_; }

  DType dtype_ = DType::f32;
  Shape shape_;
  std::int64_t stride_ = 0, columns_ = 1;
  std::vector<std::byte> bytes_;
};

// A CPU device with one stream.
class TestDevice {
 public:
  explicit TestDevice(int threads = 1, Isa isa = best_isa());
  const Operations& operations() const { return device_.operations(); }
  Stream& stream() { return *stream_; }
  std::string text() const;  // for SCOPED_TRACE

 private:
  CpuDevice device_;
  int threads_;
  std::unique_ptr<Stream> stream_;
};

// test(device) with one and with two threads, for every instruction set of this machine.
void for_each_device(const std::function<void(TestDevice&)>& test);
std::vector<Isa> supported_isas();

// Half the distance from 1 to the next number of that type.
double unit_roundoff(DType dtype);
// The type that sums are kept in: f64 for f64, otherwise f32.
DType accumulator_of(DType dtype);

// A sum of `length` terms, added up in acc in any order and stored in got's dtype, lies within
//   unit(stored) |want| + unit(acc) (length + 2) magnitude,   magnitude = sum of the terms' absolute values
// of the exact value (all factors 1.01; terms below the smallest normal number may be lost). `length` may also be
// the number of roundings of a formula. magnitudes: one per element; empty: max |want| everywhere.
void expect_close(const HostTensor& got, const std::vector<double>& want, std::int64_t length,
                  const std::vector<double>& magnitudes = {});

// Compares `analytic` with central differences (five points, f64) of scalar(), which reads `input`, an f64 tensor:
// |difference| <= tolerance * max(|analytic|, 0.01 max |analytic|). At most `samples` elements, evenly spread.
void check_gradient(const std::function<double()>& scalar, HostTensor& input, const std::vector<double>& analytic,
                    double tolerance = 1e-6, std::int64_t samples = 96);

// sum of x * weights: makes a scalar of a result, whose gradient with respect to x is weights.
double weighted_sum(const HostTensor& x, const HostTensor& weights);

}  // namespace weft
