#include <cmath>
#include <limits>

#include <fmt/format.h>

#include "tests/device/everywhere.h"

namespace weft {
namespace {

const ActivationSpec kinds[] = {
    {ActivationKind::swiglu},
    {ActivationKind::squared_relu},
    {ActivationKind::gelu},
    {ActivationKind::gelu_erf},
    {ActivationKind::clamped_swiglu, 1.5},
    {ActivationKind::clamped_swiglu, 0},
    {ActivationKind::quick_geglu, 1.5, 1.702, 1},
    {ActivationKind::quick_geglu, 0, 1.3, 0.5},
};

double sigmoid(double x) { return 1 / (1 + std::exp(-x)); }

// The definition, from the contract.
double value(const ActivationSpec& spec, double g, double u) {
  const double limit =
      spec.limit > 0 && spec.kind != ActivationKind::swiglu ? spec.limit : std::numeric_limits<double>::infinity();
  switch (spec.kind) {
    case ActivationKind::squared_relu:
      return std::pow(std::max(g, 0.0), 2);
    case ActivationKind::gelu:
      return 0.5 * g * (1 + std::tanh(std::sqrt(2 / M_PI) * (g + 0.044715 * g * g * g)));
    case ActivationKind::gelu_erf:
      return 0.5 * g * (1 + std::erf(g / std::sqrt(2)));
    default: {
      g = std::min(g, limit), u = std::clamp(u, -limit, limit);
      return spec.kind == ActivationKind::quick_geglu ? g * sigmoid(spec.alpha * g) * (u + spec.offset)
                                                      : g * sigmoid(g) * u;
    }
  }
}

// Derivatives by g and u, each zero beyond its clamp.
std::pair<double, double> slopes(const ActivationSpec& spec, double g, double u) {
  const double limit =
      spec.limit > 0 && spec.kind != ActivationKind::swiglu ? spec.limit : std::numeric_limits<double>::infinity();
  switch (spec.kind) {
    case ActivationKind::squared_relu:
      return {2 * std::max(g, 0.0), 0};
    case ActivationKind::gelu: {
      const double k = std::sqrt(2 / M_PI), t = std::tanh(k * (g + 0.044715 * g * g * g));
      return {0.5 * (1 + t) + 0.5 * g * (1 - t * t) * k * (1 + 3 * 0.044715 * g * g), 0};
    }
    case ActivationKind::gelu_erf:
      return {0.5 * (1 + std::erf(g / std::sqrt(2))) + g * std::exp(-g * g / 2) / std::sqrt(2 * M_PI), 0};
    default: {
      const bool quick = spec.kind == ActivationKind::quick_geglu;
      const double a = quick ? spec.alpha : 1, offset = quick ? spec.offset : 0;
      const double gc = std::min(g, limit), uc = std::clamp(u, -limit, limit), s = sigmoid(a * gc);
      return {g > limit ? 0 : (uc + offset) * (s + a * gc * s * (1 - s)), std::abs(u) > limit ? 0 : gc * s};
    }
  }
}

std::string text(const ActivationSpec& spec, DType dtype, std::int64_t width) {
  return fmt::format("kind {} limit {} {} width {}", static_cast<int>(spec.kind), spec.limit, name_of(dtype), width);
}

// The sigmoid's and the normal distribution's absolute error is a few roundings (the error of the argument counts
// |z| s (1 - s) < 0.3 times), so values are good to that many roundings of |g| (|u| + offset) scale.
constexpr std::int64_t roundings = 16;

TEST(Activation, ForwardIsTheDefinition) {
  for (const ActivationSpec& spec : kinds)
    for (DType dtype : storages)
      for (std::int64_t width : {1, 3, 17, 65, 1000}) {
        SCOPED_TRACE(text(spec, dtype, width));
        const std::int64_t rows = width == 1000 ? 41 : 5, used = rows - 2, columns = spec.gated() ? 2 * width : width;
        const HostTensor x = HostTensor::normal(dtype, Shape{rows, columns}, "x", 3, columns + 3);
        const HostTensor scale = HostTensor::normal(accumulator_of(dtype), Shape{rows}, "scale");
        const HostTensor in_use = HostTensor::integers({static_cast<std::int32_t>(used)});
        std::vector<double> want, scaled, bounds, scaled_bounds;
        for (std::int64_t r = 0; r < rows; ++r)
          for (std::int64_t j = 0; j < width; ++j) {
            const double g = x.at(r, j), u = spec.gated() ? x.at(r, width + j) : 0;
            want.push_back(value(spec, g, u));
            bounds.push_back(spec.gated() ? std::abs(g) * (std::abs(u) + spec.offset)
                                          : std::abs(g) * (std::abs(g) + 1));
            scaled.push_back(r < used ? want.back() * scale.at(r) : 7);  // rows beyond are not written
            scaled_bounds.push_back(bounds.back() * std::abs(scale.at(r)));
          }
        everywhere(
            [&](TestDevice& device) {
              HostTensor y(dtype, Shape{rows, width}, width + 2), z = y;
              z.fill(7);
              device.operations().activation(device.stream(), {spec, x, y});
              device.operations().activation(device.stream(), {spec, x, z, scale, in_use});
              return std::vector<HostTensor>{y, z};
            },
            [&](const std::vector<HostTensor>& got) {
              expect_close(got[0], want, roundings, bounds);
              expect_close(got[1], scaled, roundings, scaled_bounds);
            });
      }
}

TEST(Activation, BackwardIsTheDerivative) {
  for (const ActivationSpec& spec : kinds)
    for (DType dtype : storages)
      for (std::int64_t width : {1, 3, 17, 65, 1000}) {
        SCOPED_TRACE(text(spec, dtype, width));
        const std::int64_t rows = width == 1000 ? 41 : 5, used = rows - 1, columns = spec.gated() ? 2 * width : width;
        const HostTensor x = HostTensor::normal(dtype, Shape{rows, columns}, "x", 3, columns + 3);
        const HostTensor dy = HostTensor::normal(dtype, Shape{rows, width}, "dy");
        const HostTensor scale = HostTensor::normal(accumulator_of(dtype), Shape{rows}, "scale");
        const HostTensor in_use = HostTensor::integers({static_cast<std::int32_t>(used)});
        std::vector<double> dx(static_cast<std::size_t>(rows * columns), 7), bounds(dx.size(), 0), dscale, sums;
        for (std::int64_t r = 0; r < rows; ++r) {
          double sum = 0, magnitude = 0;
          for (std::int64_t j = 0; j < width; ++j) {
            const double g = x.at(r, j), u = spec.gated() ? x.at(r, width + j) : 0, d = dy.at(r, j) * scale.at(r);
            const auto [dg, du] = slopes(spec, g, u);
            sum += dy.at(r, j) * value(spec, g, u);
            magnitude += std::abs(dy.at(r, j) * g) * (spec.gated() ? std::abs(u) + spec.offset : std::abs(g) + 1);
            if (r >= used) continue;
            const auto at = static_cast<std::size_t>(r * columns + j), beside = at + static_cast<std::size_t>(width);
            dx[at] = d * dg;
            // The argument of gelu's sigmoid is cubic, its slope quadratic.
            bounds[at] = std::abs(d) * (spec.gated() ? (std::abs(u) + spec.offset) * (1 + std::abs(spec.alpha * g))
                                                     : 2 * (1 + std::abs(g) + std::abs(g * g)));
            if (spec.gated()) dx[beside] = d * du, bounds[beside] = std::abs(d * g);
          }
          dscale.push_back(r < used ? sum : 7);
          sums.push_back(magnitude);
        }
        everywhere(
            [&](TestDevice& device) {
              HostTensor got(dtype, Shape{rows, columns}, columns + 1);
              HostTensor got_scale(accumulator_of(dtype), Shape{rows});
              got.fill(7), got_scale.fill(7);
              device.operations().activation_backward(device.stream(), {spec, x, scale, dy, got, got_scale, in_use});
              HostTensor in_place = x;
              device.operations().activation_backward(device.stream(),
                                                      {spec, in_place, scale, dy, in_place, {}, in_use});
              for (std::int64_t i = 0; i < used * columns; ++i) EXPECT_EQ(got.at(i), in_place.at(i));
              return std::vector<HostTensor>{got, got_scale};
            },
            [&](const std::vector<HostTensor>& got) {
              expect_close(got[0], dx, roundings, bounds);
              expect_close(got[1], dscale, width + roundings, sums);
            });
      }
}

TEST(Activation, GradientsAgreeWithDifferences) {
  TestDevice device;
  for (const ActivationSpec& spec : kinds) {
    SCOPED_TRACE(text(spec, DType::f64, 9));
    const std::int64_t rows = 4, width = 9, columns = spec.gated() ? 2 * width : width;
    HostTensor x = HostTensor::normal(DType::f64, Shape{rows, columns}, "x", 1.5);
    for (std::int64_t i = 0; i < x.elements(); ++i)  // away from the kinks
      for (double kink : {-spec.limit, 0.0, spec.limit})
        if (std::abs(x.at(i) - kink) < 0.02) x.set(i, kink + 0.05);
    HostTensor scale = HostTensor::normal(DType::f64, Shape{rows}, "scale");
    const HostTensor dy = HostTensor::normal(DType::f64, Shape{rows, width}, "dy");
    HostTensor y = dy, dx = x, dscale = scale;
    const auto loss = [&] {
      device.operations().activation(device.stream(), {spec, x, y, scale});
      return weighted_sum(y, dy);
    };
    device.operations().activation_backward(device.stream(), {spec, x, scale, dy, dx, dscale});
    check_gradient(loss, x, dx.values());
    check_gradient(loss, scale, dscale.values());
  }
}

TEST(Activation, KeepsNanAndExtremes) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  for_each_device([&](TestDevice& device) {
    for (const ActivationSpec& spec : kinds)
      for (DType dtype : storages) {
        SCOPED_TRACE(text(spec, dtype, 3));
        const std::int64_t columns = spec.gated() ? 6 : 3;
        std::vector<double> values = {nan, -1e4, 1e4};
        values.resize(static_cast<std::size_t>(columns), 1.0);
        const HostTensor x = HostTensor::of(dtype, Shape{1, columns}, values);
        HostTensor y(dtype, Shape{1, 3});
        device.operations().activation(device.stream(), {spec, x, y});
        EXPECT_TRUE(std::isnan(y.at(0)));
        EXPECT_NEAR(y.at(1), 0, 1e-30);
        EXPECT_NEAR(y.at(2) / value(spec, x.at(2), 1), 1, 1e-2);
      }
  });
}

}  // namespace
}  // namespace weft
