#include <cmath>

#include <fmt/format.h>

#include "tests/device/everywhere.h"
#include "weft/base/error.h"
#include "weft/device/operations.h"

namespace weft {
namespace {

// One case; weight_length: a part's width (shared) or a row's.
struct Case {
  DType dtype;
  std::int64_t rows, groups, width;
  bool shared = true, zero_centred = false;
  std::int64_t gap = 0;  // elements between rows
  std::string text() const {
    return fmt::format("{} [{}, {} x {}] shared {} centred {} gap {}", name_of(dtype), rows, groups, width, shared,
                       zero_centred, gap);
  }
  std::int64_t columns() const { return groups * width; }
  std::int64_t stride() const { return gap > 0 ? columns() + gap : 0; }
  HostTensor matrix(const char* name) const {
    return HostTensor::normal(dtype, Shape{rows, columns()}, name, 1, stride());
  }
  HostTensor weight(DType type) const {
    return HostTensor::normal(type, Shape{shared ? width : columns()}, "weight", zero_centred ? 0.3 : 1);
  }
};

std::vector<Case> cases() {
  std::vector<Case> all;
  for (DType dtype : storages) {
    for (std::int64_t width : {1, 3, 17, 65, 1000}) all.push_back({dtype, 1, 1, width});
    all.push_back({dtype, 45, 1, 1000, true, false, 5});
    all.push_back({dtype, 45, 1, 1000, true, true});
    all.push_back({dtype, 300, 9, 17, true, false, 3});
    all.push_back({dtype, 300, 9, 17, false, true, 3});
    all.push_back({dtype, 70, 5, 128, true, true});
  }
  return all;
}

double weight_at(const Case& c, const HostTensor& weight, std::int64_t column) {
  return weight.at(c.shared ? column % c.width : column) + (c.zero_centred ? 1 : 0);
}

constexpr double eps = 1e-3;

double inverse_of(const Case& c, const HostTensor& x, std::int64_t row, std::int64_t part) {
  double sum = 0;
  for (std::int64_t j = 0; j < c.width; ++j) sum += std::pow(x.at(row, part * c.width + j), 2);
  return 1 / std::sqrt(sum / static_cast<double>(c.width) + eps);
}

TEST(RmsNorm, ForwardIsTheFormula) {
  for (const Case& c : cases())
    for (DType weight_type : {c.dtype, accumulator_of(c.dtype)}) {
      SCOPED_TRACE(c.text());
      const HostTensor x = c.matrix("x"), weight = c.weight(weight_type);
      std::vector<double> want, magnitudes, inverses;
      for (std::int64_t r = 0; r < c.rows; ++r)
        for (std::int64_t part = 0; part < c.groups; ++part) {
          inverses.push_back(inverse_of(c, x, r, part));
          for (std::int64_t j = part * c.width; j < (part + 1) * c.width; ++j) {
            want.push_back(x.at(r, j) * inverses.back() * weight_at(c, weight, j));
            magnitudes.push_back(std::abs(x.at(r, j) * inverses.back()) * (std::abs(weight_at(c, weight, j)) + 1));
          }
        }
      everywhere(
          [&](TestDevice& device) {
            HostTensor y(c.dtype, Shape{c.rows, c.columns()}, c.stride());
            HostTensor inverse(accumulator_of(c.dtype), Shape{c.rows * c.groups});
            device.operations().rms_norm(device.stream(), {x, weight, y, inverse, c.groups, eps, c.zero_centred});
            HostTensor alone(c.dtype, Shape{c.rows, c.columns()}, c.stride());  // without the inverse, the same
            device.operations().rms_norm(device.stream(), {x, weight, alone, {}, c.groups, eps, c.zero_centred});
            EXPECT_TRUE(y.same_bits(alone));
            return std::vector<HostTensor>{y, inverse};
          },
          [&](const std::vector<HostTensor>& got) {
            expect_close(got[0], want, c.width + 8, magnitudes);
            expect_close(got[1], inverses, c.width + 6, inverses);
          });
    }
}

TEST(RmsNorm, BackwardIsTheFormula) {
  for (const Case& c : cases()) {
    SCOPED_TRACE(c.text());
    const HostTensor x = c.matrix("x"), dy = c.matrix("dy"), residual = c.matrix("residual");
    const HostTensor weight = c.weight(c.dtype);
    HostTensor inverse(accumulator_of(c.dtype), Shape{c.rows * c.groups});
    std::vector<double> plain, magnitudes, added, added_magnitudes;
    for (std::int64_t r = 0; r < c.rows; ++r)
      for (std::int64_t part = 0; part < c.groups; ++part) {
        inverse.set(r * c.groups + part, inverse_of(c, x, r, part));
        const double a = inverse.at(r * c.groups + part);
        double mean = 0, mean_magnitude = 0;
        for (std::int64_t j = part * c.width; j < (part + 1) * c.width; ++j) {
          const double term = dy.at(r, j) * weight_at(c, weight, j) * x.at(r, j) / static_cast<double>(c.width);
          mean += term;
          mean_magnitude += std::abs(term);
        }
        for (std::int64_t j = part * c.width; j < (part + 1) * c.width; ++j) {
          const double straight = a * dy.at(r, j) * weight_at(c, weight, j), along = x.at(r, j) * a * a * a;
          plain.push_back(straight - along * mean);
          magnitudes.push_back(std::abs(straight) + std::abs(a * dy.at(r, j)) + std::abs(along) * mean_magnitude);
          added.push_back(plain.back() + residual.at(r, j));
          added_magnitudes.push_back(magnitudes.back() + std::abs(residual.at(r, j)));
        }
      }
    everywhere(
        [&](TestDevice& device) {
          const auto run = [&](const HostTensor& gradient, const HostTensor& dx, const Tensor& extra) {
            const HostTensor dweight = weight;
            device.operations().rms_norm_backward(
                device.stream(), {x, weight, inverse, gradient, dx, extra, dweight, c.groups, c.zero_centred});
          };
          HostTensor dx(c.dtype, Shape{c.rows, c.columns()}, c.stride()), with = dx;
          run(dy, dx, {});
          run(dy, with, residual);
          HostTensor on_dy = dy, on_residual = residual;
          run(on_dy, on_dy, residual);
          run(dy, on_residual, on_residual);
          EXPECT_TRUE(on_dy.same_bits(with) && on_residual.same_bits(with)) << "in place";
          return std::vector<HostTensor>{dx, with};
        },
        [&](const std::vector<HostTensor>& got) {
          expect_close(got[0], plain, c.width + 12, magnitudes);
          expect_close(got[1], added, c.width + 12, added_magnitudes);
        });
  }
}

TEST(RmsNorm, WeightGradientIsTheSum) {
  for (const Case& c : cases())
    for (DType type : {c.dtype, accumulator_of(c.dtype)}) {
      SCOPED_TRACE(c.text());
      const HostTensor x = c.matrix("x"), dy = c.matrix("dy"), old = c.weight(type);
      HostTensor inverse(accumulator_of(c.dtype), Shape{c.rows * c.groups});
      std::vector<double> sums(static_cast<std::size_t>(old.elements())), magnitudes = sums;
      for (std::int64_t r = 0; r < c.rows; ++r)
        for (std::int64_t j = 0; j < c.columns(); ++j) {
          const std::int64_t at = r * c.groups + j / c.width;
          if (j % c.width == 0) inverse.set(at, inverse_of(c, x, r, j / c.width));
          const double term = dy.at(r, j) * x.at(r, j) * inverse.at(at);
          sums[static_cast<std::size_t>(c.shared ? j % c.width : j)] += term;
          magnitudes[static_cast<std::size_t>(c.shared ? j % c.width : j)] += std::abs(term);
        }
      everywhere(
          [&](TestDevice& device) {
            HostTensor written = old, added = old, dx = dy, on_dy = dy;
            const HostTensor weight = c.weight(type);
            device.operations().rms_norm_backward(device.stream(),
                                                  {x, weight, inverse, dy, dx, {}, written, c.groups, c.zero_centred});
            device.operations().rms_norm_backward(
                device.stream(), {x, weight, inverse, on_dy, on_dy, {}, added, c.groups, c.zero_centred, Store::add});
            return std::vector<HostTensor>{written, added};
          },
          [&](const std::vector<HostTensor>& got) {
            const std::int64_t length = c.rows * (c.shared ? c.groups : 1) + 3;
            expect_close(got[0], sums, length, magnitudes);
            std::vector<double> want = sums, bounds = magnitudes;
            for (std::size_t i = 0; i < want.size(); ++i) {
              want[i] += old.at(static_cast<std::int64_t>(i));
              bounds[i] += std::abs(old.at(static_cast<std::int64_t>(i)));
            }
            expect_close(got[1], want, length, bounds);
          });
    }
}

TEST(RmsNorm, GradientsAgreeWithDifferences) {
  TestDevice device;
  const Operations& ops = device.operations();
  for (Case c : {Case{DType::f64, 3, 1, 17}, Case{DType::f64, 2, 4, 7, true, true}, Case{DType::f64, 2, 4, 7, false}}) {
    SCOPED_TRACE(c.text());
    HostTensor x = c.matrix("x"), weight = c.weight(DType::f64);
    const HostTensor dy = c.matrix("dy"), residual = c.matrix("residual");
    HostTensor y = c.matrix("y"), dx = y, dweight = weight, inverse(DType::f64, Shape{c.rows * c.groups});
    const auto loss = [&] {  // the residual's gradient is its own: x also goes straight to the loss
      ops.rms_norm(device.stream(), {x, weight, y, inverse, c.groups, eps, c.zero_centred});
      return weighted_sum(y, dy) + weighted_sum(x, residual);
    };
    loss();
    ops.rms_norm_backward(device.stream(), {x, weight, inverse, dy, dx, residual, dweight, c.groups, c.zero_centred});
    check_gradient(loss, x, dx.values());
    check_gradient(loss, weight, dweight.values());
  }
}

TEST(RmsNorm, RefusesWhatDoesNotFit) {
  TestDevice device;
  const HostTensor x(DType::f32, Shape{2, 6}), y(DType::f32, Shape{2, 5}), weight(DType::f32, Shape{4});
  const auto message = [&](const RmsNorm& op) -> std::string {
    try {
      device.operations().rms_norm(device.stream(), op);
    } catch (const BugError& error) {
      return error.what();
    }
    return "";
  };
  EXPECT_EQ(message({x, weight, y}), "rms_norm: x and y differ in shape or dtype");
  EXPECT_EQ(message({x, weight, x}), "rms_norm: the weight's length is neither a part's nor a row's");
  EXPECT_EQ(message({x, weight, x, {}, 4}), "rms_norm: a row does not divide into its parts");
}

}  // namespace
}  // namespace weft
