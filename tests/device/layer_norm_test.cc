#include <cmath>

#include "tests/device/everywhere.h"
#include "weft/base/error.h"

namespace weft {
namespace {

std::size_t place(std::int64_t i) { return static_cast<std::size_t>(i); }

struct Problem {
  std::int64_t rows, columns;
  HostTensor x, weight, bias, dy;
  std::vector<double> mean, inverse, normal;  // [rows], [rows], [rows, columns]
  static constexpr double eps = 1e-3;

  Problem(DType dtype, DType other, std::int64_t r, std::int64_t c)
      : rows(r),
        columns(c),
        x(HostTensor::normal(dtype, {r, c}, "x", 1, c + 3)),
        weight(HostTensor::normal(other, {c}, "weight")),
        bias(HostTensor::normal(other, {c}, "bias")),
        dy(HostTensor::normal(dtype, {r, c}, "dy")) {
    compute();
  }
  void compute() {
    mean.clear(), inverse.clear(), normal.clear();
    for (std::int64_t r = 0; r < rows; ++r) {
      double sum = 0, squares = 0;
      for (std::int64_t c = 0; c < columns; ++c) sum += x.at(r, c);
      mean.push_back(sum / static_cast<double>(columns));
      for (std::int64_t c = 0; c < columns; ++c) squares += std::pow(x.at(r, c) - mean.back(), 2);
      inverse.push_back(1 / std::sqrt(squares / static_cast<double>(columns) + eps));
      for (std::int64_t c = 0; c < columns; ++c) normal.push_back((x.at(r, c) - mean.back()) * inverse.back());
    }
  }
};

template <class Body>
void for_each_problem(const Body& body) {
  for (DType dtype : storages)
    for (DType other : {dtype, accumulator_of(dtype)})
      for (const auto& [rows, columns] : {std::pair{1, 1}, std::pair{3, 2}, std::pair{7, 65}, std::pair{300, 33}}) {
        SCOPED_TRACE(fmt::format("{} {} [{}, {}]", name_of(dtype), name_of(other), rows, columns));
        body(Problem(dtype, other, rows, columns), accumulator_of(dtype));
      }
}

HostTensor tensor_of(DType dtype, const std::vector<double>& values) {
  return HostTensor::of(dtype, {static_cast<std::int64_t>(values.size())}, values);
}

TEST(LayerNorm, CentresAndScalesRows) {
  for_each_problem([](const Problem& p, DType acc) {
    std::vector<double> want, sizes;
    for (std::int64_t i = 0; i < p.rows * p.columns; ++i) {
      const double w = p.weight.at(i % p.columns), b = p.bias.at(i % p.columns), s = p.inverse[place(i / p.columns)];
      want.push_back(p.normal[place(i)] * w + b);
      double largest = 0;
      for (std::int64_t c = 0; c < p.columns; ++c) largest = std::max(largest, std::abs(p.x.at(i / p.columns, c)));
      sizes.push_back(3 * largest * s * std::abs(w) * (1 + largest * s) + std::abs(b));
    }
    everywhere(
        [&](TestDevice& device) {
          HostTensor y(p.x.dtype(), {p.rows, p.columns}, p.columns + 1), mean(acc, {p.rows}), inverse(acc, {p.rows});
          device.operations().layer_norm(device.stream(), {p.x, p.weight, p.bias, y, mean, inverse, Problem::eps});
          HostTensor again(p.x.dtype(), {p.rows, p.columns}, p.columns + 1);
          device.operations().layer_norm(device.stream(), {p.x, p.weight, p.bias, again, {}, {}, Problem::eps});
          EXPECT_TRUE(again.same_bits(y));
          return std::vector<HostTensor>{y, mean, inverse};
        },
        [&](const std::vector<HostTensor>& got) {
          EXPECT_TRUE(got[0].gaps_intact());
          expect_close(got[0], want, p.columns + 4, sizes);
        });
  });
}

TEST(LayerNorm, GradientsOfWeightAndBias) {
  for_each_problem([](const Problem& p, DType acc) {
    for (Store store : {Store::write, Store::add}) {
      std::vector<double> dweight(place(p.columns), 0), dbias(dweight), size_w(dweight), size_b(dweight);
      for (std::int64_t c = 0; c < p.columns; ++c) {
        const double old = store == Store::add ? p.weight.at(c) : 0;
        dweight[place(c)] = dbias[place(c)] = old;
        size_w[place(c)] = size_b[place(c)] = std::abs(old);
        for (std::int64_t r = 0; r < p.rows; ++r) {
          dweight[place(c)] += p.dy.at(r, c) * p.normal[place(r * p.columns + c)];
          dbias[place(c)] += p.dy.at(r, c);
          size_w[place(c)] += std::abs(p.dy.at(r, c)) * 4;  // mean and inverse are rounded too
          size_b[place(c)] += std::abs(p.dy.at(r, c));
        }
      }
      everywhere(
          [&](TestDevice& device) {
            const HostTensor mean = tensor_of(acc, p.mean), inverse = tensor_of(acc, p.inverse);
            HostTensor dw = p.weight, db = p.weight;
            device.operations().layer_norm_weight_gradient(device.stream(),
                                                           {p.x, mean, inverse, p.dy, dw, db, store, store});
            return std::vector<HostTensor>{dw, db};
          },
          [&](const std::vector<HostTensor>& got) {
            expect_close(got[0], dweight, p.rows + 6, size_w);
            expect_close(got[1], dbias, p.rows, size_b);
          });
    }
  });
}

TEST(LayerNorm, GradientsAreThoseOfDifferences) {
  TestDevice device(2);
  for (const auto& [rows, columns] : {std::pair{1, 1}, std::pair{3, 2}, std::pair{5, 37}}) {
    Problem p(DType::f64, DType::f64, rows, columns);
    const auto scalar = [&] {
      HostTensor y(DType::f64, {p.rows, p.columns});
      device.operations().layer_norm(device.stream(), {p.x, p.weight, p.bias, y, {}, {}, Problem::eps});
      return weighted_sum(y, p.dy);
    };
    const HostTensor mean = tensor_of(DType::f64, p.mean), inverse = tensor_of(DType::f64, p.inverse);
    HostTensor dx = p.dy, dw(DType::f64, {p.columns}), db(DType::f64, {p.columns});
    device.operations().layer_norm_weight_gradient(device.stream(), {p.x, mean, inverse, p.dy, dw, db});
    device.operations().layer_norm_backward(device.stream(), {p.x, p.weight, mean, inverse, dx, dx});
    if (columns > 1) check_gradient(scalar, p.x, dx.values());
    if (columns == 1) {
      for (double value : dx.values()) EXPECT_NEAR(value, 0, 1e-12);
    }
    check_gradient(scalar, p.bias, db.values());
    if (columns > 1) check_gradient(scalar, p.weight, dw.values());
  }
}

TEST(LayerNorm, BackwardInEveryTypeIsNearTheOneInDouble) {
  for_each_problem([](const Problem& p, DType acc) {
    TestDevice exact;
    HostTensor want(DType::f64, {p.rows, p.columns});
    const auto wide = [](const HostTensor& t, const Shape& shape) {
      return HostTensor::of(DType::f64, shape, t.values());
    };
    exact.operations().layer_norm_backward(
        exact.stream(), {wide(p.x, {p.rows, p.columns}), wide(p.weight, {p.columns}), tensor_of(DType::f64, p.mean),
                         tensor_of(DType::f64, p.inverse), wide(p.dy, {p.rows, p.columns}), want});
    std::vector<double> sizes;
    for (std::int64_t i = 0; i < p.rows * p.columns; ++i) {
      double largest = 0, normal = 1;
      for (std::int64_t c = 0; c < p.columns; ++c) {
        largest = std::max(largest, std::abs(p.dy.at(i / p.columns, c) * p.weight.at(c)));
        normal = std::max(normal, std::abs(p.normal[place(i / p.columns * p.columns + c)]));
      }
      sizes.push_back(p.inverse[place(i / p.columns)] * largest * 4 * normal * normal);
    }
    everywhere(
        [&](TestDevice& device) {
          HostTensor dx(p.x.dtype(), {p.rows, p.columns});
          device.operations().layer_norm_backward(
              device.stream(), {p.x, p.weight, tensor_of(acc, p.mean), tensor_of(acc, p.inverse), p.dy, dx});
          return std::vector<HostTensor>{dx};
        },
        [&](const std::vector<HostTensor>& got) { expect_close(got[0], want.values(), p.columns + 6, sizes); });
  });
}

}  // namespace
}  // namespace weft
