// Norms and gates of recurrent layers: gated_norm, l2_norm, sigmoid_gate.
#include <cmath>

#include <fmt/format.h>

#include "tests/device/everywhere.h"
#include "weft/device/operations.h"

namespace weft {
namespace {

constexpr double eps = 1e-3;

struct Case {
  DType dtype;
  std::int64_t rows, groups, width;
  bool shared, gate_first;
  std::string text() const {
    return fmt::format("{} [{}, {} x {}] shared {} gate first {}", name_of(dtype), rows, groups, width, shared,
                       gate_first);
  }
  std::int64_t columns() const { return groups * width; }
  HostTensor matrix(const char* name, DType type) const {
    return HostTensor::normal(type, Shape{rows, columns()}, name, 1, columns() + 3);
  }
  HostTensor weight(DType type) const { return HostTensor::normal(type, Shape{shared ? width : columns()}, "weight"); }
};

std::vector<Case> cases() {
  std::vector<Case> all;
  for (DType dtype : storages)
    for (bool gate_first : {false, true}) {
      all.push_back({dtype, 1, 1, 1, false, gate_first});
      all.push_back({dtype, 37, 1, 70, false, gate_first});
      all.push_back({dtype, 150, 3, 33, false, gate_first});
      all.push_back({dtype, 60, 5, 64, true, gate_first});
    }
  return all;
}

double silu(double x) { return x / (1 + std::exp(-x)); }

TEST(GatedNorm, ForwardIsTheFormula) {
  for (const Case& c : cases()) {
    SCOPED_TRACE(c.text());
    const HostTensor x = c.matrix("x", c.dtype), z = c.matrix("z", c.dtype), weight = c.weight(c.dtype);
    std::vector<double> want;
    for (std::int64_t r = 0; r < c.rows; ++r)
      for (std::int64_t g = 0; g < c.groups; ++g) {
        double sum = 0;
        for (std::int64_t j = g * c.width; j < (g + 1) * c.width; ++j)
          sum += std::pow(x.at(r, j) * (c.gate_first ? silu(z.at(r, j)) : 1), 2);
        const double inverse = 1 / std::sqrt(sum / static_cast<double>(c.width) + eps);
        for (std::int64_t j = g * c.width; j < (g + 1) * c.width; ++j)
          want.push_back(x.at(r, j) * silu(z.at(r, j)) * inverse * weight.at(c.shared ? j % c.width : j));
      }
    everywhere(
        [&](TestDevice& device) {
          HostTensor y = c.matrix("y", c.dtype), inverse(accumulator_of(c.dtype), Shape{c.rows * c.groups});
          device.operations().gated_norm(device.stream(), {x, z, weight, y, inverse, c.groups, eps, c.gate_first});
          return std::vector<HostTensor>{y};
        },
        [&](const std::vector<HostTensor>& got) { expect_close(got[0], want, c.width + 16); });
  }
}

std::vector<HostTensor> gradients(TestDevice& device, const Case& c, const HostTensor& x, const HostTensor& z,
                                  const HostTensor& weight, const HostTensor& dy) {
  const DType acc = accumulator_of(x.dtype());
  HostTensor y = x, dx = x, dz = x, inverse(acc, Shape{c.rows * c.groups}), dweight = c.weight(acc);
  const GatedNorm op{x, z, weight, y, inverse, c.groups, eps, c.gate_first};
  device.operations().gated_norm(device.stream(), op);
  device.operations().gated_norm_backward(device.stream(), {op, dy, dx, dz, dweight});
  HostTensor added = dweight, on_dy = dy, other = dz;
  device.operations().gated_norm_backward(device.stream(), {op, on_dy, on_dy, other, added, Store::add});
  EXPECT_TRUE(on_dy.same_bits(dx) && other.same_bits(dz)) << "in place";
  for (std::int64_t i = 0; i < added.elements(); ++i) EXPECT_EQ(added.at(i), 2 * dweight.at(i));
  return {dx, dz, dweight};
}

HostTensor widened(const HostTensor& x, const Shape& shape) { return HostTensor::of(DType::f64, shape, x.values()); }

TEST(GatedNorm, GradientsInOtherTypesAreThoseInDouble) {
  TestDevice one;
  for (const Case& c : cases()) {
    SCOPED_TRACE(c.text());
    const HostTensor x = c.matrix("x", c.dtype), z = c.matrix("z", c.dtype), dy = c.matrix("dy", c.dtype);
    const HostTensor weight = c.weight(c.dtype);
    const Shape shape{c.rows, c.columns()};
    const std::vector<HostTensor> want =
        gradients(one, c, widened(x, shape), widened(z, shape),
                  HostTensor::of(DType::f64, Shape{weight.elements()}, weight.values()), widened(dy, shape));
    // Two terms that may cancel: each is at most this.
    std::vector<double> bounds;
    for (std::int64_t r = 0; r < c.rows; ++r)
      for (std::int64_t j = 0; j < c.columns(); ++j)
        bounds.push_back(2 / std::sqrt(eps) * std::abs(dy.at(r, j) * weight.at(c.shared ? j % c.width : j)) *
                         (std::abs(silu(z.at(r, j))) + std::abs(x.at(r, j))));
    everywhere([&](TestDevice& device) { return gradients(device, c, x, z, weight, dy); },
               [&](const std::vector<HostTensor>& got) {
                 const bool cancels = c.width < 8;
                 expect_close(got[0], want[0].values(), c.width + 24, cancels ? bounds : std::vector<double>{});
                 expect_close(got[1], want[1].values(), c.width + 24, cancels ? bounds : std::vector<double>{});
                 expect_close(got[2], want[2].values(), c.rows * c.groups + c.width + 24);
               });
  }
}

TEST(GatedNorm, GradientsAgreeWithDifferences) {
  TestDevice device;
  for (const Case& c : cases()) {
    if (c.dtype != DType::f64) continue;
    SCOPED_TRACE(c.text());
    HostTensor x = c.matrix("x", c.dtype), z = c.matrix("z", c.dtype), weight = c.weight(c.dtype), y = x;
    const HostTensor dy = c.matrix("dy", c.dtype);
    HostTensor inverse(DType::f64, Shape{c.rows * c.groups});
    const auto loss = [&] {
      device.operations().gated_norm(device.stream(), {x, z, weight, y, inverse, c.groups, eps, c.gate_first});
      return weighted_sum(y, dy);
    };
    const std::vector<HostTensor> got = gradients(device, c, x, z, weight, dy);
    check_gradient(loss, x, got[0].values(), 1e-6, 24);
    check_gradient(loss, z, got[1].values(), 1e-6, 24);
    check_gradient(loss, weight, got[2].values(), 1e-6, 24);
  }
}

// The first columns are one rank's, the others another's.
TEST(GatedNorm, PiecesOfARowAreTheWholeNorm) {
  for (const Case& c : cases()) {
    if (c.width < 2 || c.groups > 1) continue;
    SCOPED_TRACE(c.text());
    const DType acc = accumulator_of(c.dtype);
    const HostTensor x = c.matrix("x", c.dtype), z = c.matrix("z", c.dtype), dy = c.matrix("dy", c.dtype);
    const HostTensor weight = c.weight(c.dtype);
    TestDevice one;
    std::vector<HostTensor> want = gradients(one, c, x, z, weight, dy);
    want.push_back(x);
    HostTensor inverses(acc, Shape{c.rows});
    one.operations().gated_norm(one.stream(), {x, z, weight, want[3], inverses, 1, eps, c.gate_first});
    everywhere(
        [&](TestDevice& device) {
          const auto& ops = device.operations();
          HostTensor dx = x, dz = x, dweight = c.weight(acc), y = x, inverse(acc, Shape{c.rows});
          const std::int64_t cut = c.width / 3 + 1;
          HostTensor squares(acc, Shape{c.rows, 1}), products = squares, part = squares;
          const auto piece = [&](bool first) {
            const std::int64_t from = first ? 0 : cut, count = first ? cut : c.width - cut;
            const auto of = [&](const HostTensor& all) { return all.view().slice_columns(from, count); };
            GatedNorm f{of(x), of(z), weight.view().slice_rows(from, count), of(y), inverse, 1, eps, c.gate_first};
            f.whole = c.width;
            return GatedNormBackward{f, of(dy), of(dx), of(dz), dweight.view().slice_rows(from, count)};
          };
          for (const bool with_dy : {false, true}) {
            HostTensor& total = with_dy ? products : squares;
            for (const bool first : {true, false}) {
              const GatedNormBackward own = piece(first);
              ops.gated_norm_sums(device.stream(), {own.forward, with_dy ? own.dy : Tensor{}, part});
              for (std::int64_t r = 0; r < c.rows; ++r) total.set(r, total.at(r) + part.at(r));
            }
          }
          for (const bool first : {true, false}) {
            GatedNormBackward own = piece(first);
            own.forward.squares = squares;
            own.products = products;
            ops.gated_norm(device.stream(), own.forward);
            ops.gated_norm_backward(device.stream(), own);
          }
          return std::vector<HostTensor>{dx, dz, dweight, y};
        },
        [&](const std::vector<HostTensor>& got) {
          for (std::size_t i = 0; i < 4; ++i) expect_close(got[i], want[i].values(), 2 * c.width + c.rows + 48);
        });
  }
}

TEST(L2Norm, IsTheFormulaAndItsGradientAgreesWithDifferences) {
  for (DType dtype : storages)
    for (const auto& [rows, groups, width] : {std::array{1, 1, 1}, std::array{67, 3, 40}, std::array{9, 1, 129}}) {
      SCOPED_TRACE(fmt::format("{} [{}, {} x {}]", name_of(dtype), rows, groups, width));
      const double scale = 0.3;
      const Shape shape{rows, groups * width};
      HostTensor x = HostTensor::normal(dtype, shape, "x", 1, groups * width + 2);
      const HostTensor dy = HostTensor::normal(dtype, shape, "dy");
      std::vector<double> want, gradient, magnitudes;
      for (std::int64_t part = 0; part < rows * groups; ++part) {
        double sum = eps, along = 0;
        for (std::int64_t j = part * width; j < (part + 1) * width; ++j) {
          sum += x.at(j) * x.at(j);
          along += x.at(j) * dy.at(j);
        }
        for (std::int64_t j = part * width; j < (part + 1) * width; ++j) {
          want.push_back(scale * x.at(j) / std::sqrt(sum));
          gradient.push_back(scale / std::sqrt(sum) * (dy.at(j) - x.at(j) * along / sum));
          magnitudes.push_back(scale / std::sqrt(sum) * (std::abs(dy.at(j)) + std::abs(x.at(j) * along / sum)));
        }
      }
      everywhere(
          [&](TestDevice& device) {
            HostTensor y = x, dx = dy;
            const L2Norm op{x, y, groups, eps, scale};
            device.operations().l2_norm(device.stream(), op);
            device.operations().l2_norm_backward(device.stream(), {op, dx, dx});  // in place
            return std::vector<HostTensor>{y, dx};
          },
          [&](const std::vector<HostTensor>& got) {
            expect_close(got[0], want, width + 8);
            expect_close(got[1], gradient, width + 12, magnitudes);
          });
      if (dtype != DType::f64) continue;
      TestDevice device;
      HostTensor y = x;
      const auto loss = [&] {
        device.operations().l2_norm(device.stream(), {x, y, groups, eps, scale});
        return weighted_sum(y, dy);
      };
      check_gradient(loss, x, gradient, 1e-6, 24);
    }
}

TEST(SigmoidGate, IsTheFormulaAndItsGradientsAgreeWithDifferences) {
  for (DType dtype : storages)
    for (const auto& [rows, parts, width] : {std::array{1, 1, 1}, std::array{70, 37, 1}, std::array{45, 1, 100}}) {
      SCOPED_TRACE(fmt::format("{} [{}, {} x {}]", name_of(dtype), rows, parts, width));
      const Shape shape{rows, parts * width};
      HostTensor x = HostTensor::normal(dtype, shape, "x"),
                 gate = HostTensor::normal(dtype, Shape{rows, parts}, "gate");
      const HostTensor dy = HostTensor::normal(dtype, shape, "dy");
      std::vector<double> want, dx, dgate(static_cast<std::size_t>(rows * parts));
      for (std::int64_t j = 0; j < x.elements(); ++j) {
        const double s = 1 / (1 + std::exp(-gate.at(j / width)));
        want.push_back(x.at(j) * s);
        dx.push_back(dy.at(j) * s);
        dgate[static_cast<std::size_t>(j / width)] += dy.at(j) * x.at(j) * s * (1 - s);
      }
      everywhere(
          [&](TestDevice& device) {
            HostTensor y = x, d = dy, g = gate;
            device.operations().sigmoid_gate(device.stream(), {x, gate, y});
            device.operations().sigmoid_gate_backward(device.stream(), {x, g, d, d, g});  // in place
            return std::vector<HostTensor>{y, d, g};
          },
          [&](const std::vector<HostTensor>& got) {
            expect_close(got[0], want, 8);
            expect_close(got[1], dx, 8);
            expect_close(got[2], dgate, width + 10);
          });
      if (dtype != DType::f64) continue;
      TestDevice device;
      HostTensor y = x;
      const auto loss = [&] {
        device.operations().sigmoid_gate(device.stream(), {x, gate, y});
        return weighted_sum(y, dy);
      };
      check_gradient(loss, x, dx, 1e-6, 24);
      check_gradient(loss, gate, dgate, 1e-6, 24);
    }
}

}  // namespace
}  // namespace weft
