#include <cmath>

#include "tests/device/everywhere.h"
#include "weft/base/error.h"

namespace weft {
namespace {

// Five groups, some empty, with padding between them and rows of no group after them.
struct Problem {
  HostTensor counts = HostTensor::integers({5, 0, 200, 1, 0}), offsets = HostTensor::integers({0, 8, 8, 208, 216, 216});
  std::int64_t rows = 219, groups = 5, columns;
  HostTensor matrix, bias, scale;

  Problem(DType dtype, DType bias_dtype, std::int64_t n)
      : columns(n),
        matrix(HostTensor::normal(dtype, {rows, n}, "matrix", 1, n + 3)),
        bias(HostTensor::normal(bias_dtype, {groups, n}, "bias")),
        scale(HostTensor::normal(accumulator_of(dtype), {rows, 1}, "scale")) {}
  Groups group() const { return {counts, offsets}; }
  // visit(group, row)
  template <class Visit>
  void each_row(const Visit& visit) const {
    for (std::int64_t g = 0; g < groups; ++g)
      for (std::int64_t i = 0; i < static_cast<std::int64_t>(counts.at(g)); ++i)
        visit(g, static_cast<std::int64_t>(offsets.at(g)) + i);
  }
};

template <class Body>
void for_each_problem(const Body& body) {
  for (DType dtype : storages)
    for (DType other : {dtype, accumulator_of(dtype)})
      for (std::int64_t columns : {1, 3, 65, 300}) {
        SCOPED_TRACE(fmt::format("{} {} columns {}", name_of(dtype), name_of(other), columns));
        body(Problem(dtype, other, columns));
      }
}

std::size_t place(std::int64_t i) { return static_cast<std::size_t>(i); }

TEST(GroupedBias, AddsEachRowsShare) {
  for_each_problem([](const Problem& p) {
    std::vector<double> want = p.matrix.values(), magnitudes(want.size(), 0);
    p.each_row([&](std::int64_t g, std::int64_t r) {
      for (std::int64_t j = 0; j < p.columns; ++j) {
        const double term = p.scale.at(r) * p.bias.at(g, j);
        magnitudes[place(r * p.columns + j)] = std::abs(want[place(r * p.columns + j)]) + std::abs(term);
        want[place(r * p.columns + j)] += term;
      }
    });
    everywhere(
        [&](TestDevice& device) {
          HostTensor y = p.matrix;
          device.operations().grouped_bias(device.stream(), {y, p.bias, p.scale, p.group()});
          return std::vector<HostTensor>{y};
        },
        [&](const std::vector<HostTensor>& got) {
          EXPECT_TRUE(got[0].gaps_intact());
          expect_close(got[0], want, 2, magnitudes);
        });
  });
}

TEST(GroupedBias, GradientOfTheBiasIsAWeightedSumOfRows) {
  for_each_problem([](const Problem& p) {
    for (Store store : {Store::write, Store::add}) {
      std::vector<double> want = p.bias.values(), magnitudes;
      if (store == Store::write) want.assign(want.size(), 0);
      for (double value : want) magnitudes.push_back(std::abs(value));
      p.each_row([&](std::int64_t g, std::int64_t r) {
        for (std::int64_t j = 0; j < p.columns; ++j) {
          want[place(g * p.columns + j)] += p.scale.at(r) * p.matrix.at(r, j);
          magnitudes[place(g * p.columns + j)] += std::abs(p.scale.at(r) * p.matrix.at(r, j));
        }
      });
      everywhere(
          [&](TestDevice& device) {
            HostTensor y = p.bias;
            device.operations().grouped_bias_gradient(device.stream(), {p.matrix, p.scale, y, p.group(), store});
            return std::vector<HostTensor>{y};
          },
          [&](const std::vector<HostTensor>& got) { expect_close(got[0], want, 201, magnitudes); });
    }
  });
}

TEST(GroupedBias, GradientOfTheScaleIsAProductOfRows) {
  for_each_problem([](const Problem& p) {
    std::vector<double> want = p.scale.values(), magnitudes;
    for (double value : want) magnitudes.push_back(std::abs(value));
    p.each_row([&](std::int64_t g, std::int64_t r) {
      for (std::int64_t j = 0; j < p.columns; ++j) {
        want[place(r)] += p.bias.at(g, j) * p.matrix.at(r, j);
        magnitudes[place(r)] += std::abs(p.bias.at(g, j) * p.matrix.at(r, j));
      }
    });
    everywhere(
        [&](TestDevice& device) {
          HostTensor y = p.scale;
          device.operations().grouped_bias_scale_gradient(device.stream(), {p.matrix, p.bias, y, p.group()});
          return std::vector<HostTensor>{y};
        },
        [&](const std::vector<HostTensor>& got) { expect_close(got[0], want, p.columns + 1, magnitudes); });
  });
}

TEST(GroupedBias, GradientsAreThoseOfTheSum) {
  TestDevice device(2);
  Problem p(DType::f64, DType::f64, 7);
  const HostTensor weights = HostTensor::normal(DType::f64, {p.rows, p.columns}, "weights");
  const auto scalar = [&] {
    HostTensor y(DType::f64, {p.rows, p.columns});
    device.operations().grouped_bias(device.stream(), {y, p.bias, p.scale, p.group()});
    return weighted_sum(y, weights);
  };
  HostTensor dbias(DType::f64, {p.groups, p.columns}), dscale(DType::f64, {p.rows, 1});
  device.operations().grouped_bias_gradient(device.stream(), {weights, p.scale, dbias, p.group()});
  device.operations().grouped_bias_scale_gradient(device.stream(), {weights, p.bias, dscale, p.group()});
  check_gradient(scalar, p.bias, dbias.values());
  check_gradient(scalar, p.scale, dscale.values());
}

TEST(GroupedBias, GroupsOutsideOfTheRowsAreRefused) {
  TestDevice device;
  Problem p(DType::f32, DType::f32, 4);
  p.counts.set(3, 100);
  EXPECT_THROW(device.operations().grouped_bias(device.stream(), {p.matrix, p.bias, p.scale, p.group()}), BugError);
}

}  // namespace
}  // namespace weft
