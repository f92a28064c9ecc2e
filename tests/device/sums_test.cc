#include <cmath>

#include <fmt/format.h>

#include "tests/device/everywhere.h"
#include "weft/base/error.h"
#include "weft/device/operations.h"

namespace weft {
namespace {

struct Sums {
  std::vector<double> values, magnitudes;
};
// Rows [first, first + count) of x, column by column.
Sums column_sums(const HostTensor& x, std::int64_t columns, std::int64_t first, std::int64_t count) {
  Sums sums{std::vector<double>(static_cast<std::size_t>(columns)), {}};
  sums.magnitudes = sums.values;
  for (std::int64_t r = first; r < first + count; ++r)
    for (std::int64_t c = 0; c < columns; ++c) {
      sums.values[static_cast<std::size_t>(c)] += x.at(r, c);
      sums.magnitudes[static_cast<std::size_t>(c)] += std::abs(x.at(r, c));
    }
  return sums;
}

TEST(ColumnSum, AddsRowsInUse) {
  for (DType dtype : storages)
    for (DType out : {dtype, accumulator_of(dtype)})
      for (Store store : {Store::write, Store::add})
        for (std::int64_t columns : {1, 3, 17, 65, 1000})
          for (std::int64_t rows : {1, 3, 300}) {
            SCOPED_TRACE(fmt::format("{} {} [{}, {}]", name_of(dtype), name_of(out), rows, columns));
            const HostTensor x = HostTensor::normal(dtype, Shape{rows, columns}, "x", 1, columns + 3);
            const HostTensor old = HostTensor::normal(out, Shape{columns}, "old");
            for (std::int64_t used : {std::int64_t{-1}, std::int64_t{0}, rows / 2}) {
              Sums want = column_sums(x, columns, 0, used < 0 ? rows : used);
              if (store == Store::add)
                for (std::size_t c = 0; c < want.values.size(); ++c) {
                  want.values[c] += old.at(static_cast<std::int64_t>(c));
                  want.magnitudes[c] += std::abs(old.at(static_cast<std::int64_t>(c)));
                }
              const HostTensor in_use = HostTensor::integers({static_cast<std::int32_t>(used)});
              everywhere(
                  [&](TestDevice& device) {
                    HostTensor y = old;
                    device.operations().column_sum(device.stream(), {x, y, store, used < 0 ? Tensor{} : in_use.view()});
                    return std::vector<HostTensor>{y};
                  },
                  [&](const std::vector<HostTensor>& got) {
                    // rows in chunks of 128, then chunks: a sum never passes more additions than there are rows
                    expect_close(got[0], want.values, rows, want.magnitudes);
                  });
            }
          }
}

TEST(GroupedColumnSum, AddsEachGroupWithoutItsPadding) {
  const HostTensor counts = HostTensor::integers({5, 0, 200, 1}), offsets = HostTensor::integers({0, 8, 8, 208, 216});
  for (DType dtype : storages)
    for (DType out : {dtype, accumulator_of(dtype)})
      for (Store store : {Store::write, Store::add})
        for (std::int64_t columns : {1, 3, 17, 65, 1000}) {
          const HostTensor x = HostTensor::normal(dtype, Shape{220, columns}, "x", 1, columns + 1);
          const HostTensor old = HostTensor::normal(out, Shape{4, columns}, "old");
          std::vector<double> want, magnitudes;
          for (std::int64_t g = 0; g < 4; ++g) {
            const Sums sums = column_sums(x, columns, static_cast<std::int64_t>(offsets.at(g)),
                                          static_cast<std::int64_t>(counts.at(g)));
            for (std::int64_t c = 0; c < columns; ++c) {
              const double before = store == Store::add ? old.at(g, c) : 0;
              want.push_back(sums.values[static_cast<std::size_t>(c)] + before);
              magnitudes.push_back(sums.magnitudes[static_cast<std::size_t>(c)] + std::abs(before));
            }
          }
          everywhere(
              [&](TestDevice& device) {
                HostTensor y = old;
                device.operations().grouped_column_sum(device.stream(), {x, y, {counts, offsets}, store});
                return std::vector<HostTensor>{y};
              },
              [&](const std::vector<HostTensor>& got) { expect_close(got[0], want, 200, magnitudes); });
        }
}

TEST(SumOfSquares, AddsAllTensorsInDouble) {
  std::vector<HostTensor> tensors;
  double want = 0;
  for (DType dtype : storages)
    for (std::int64_t size : {1, 3, 8191, 8192, 8193, 150000}) {
      tensors.push_back(HostTensor::normal(dtype, Shape{size}, fmt::format("x{}", size)));
      for (double value : tensors.back().values()) want += value * value;
    }
  std::vector<Tensor> views(tensors.begin(), tensors.end());
  everywhere(
      [&](TestDevice& device) {
        HostTensor out = HostTensor::of(DType::f64, Shape{1}, {5}), added = out, nothing = out;
        device.operations().sum_of_squares(device.stream(), {views, out});
        device.operations().sum_of_squares(device.stream(), {views, added, Store::add});
        device.operations().sum_of_squares(device.stream(), {{}, nothing});
        return std::vector<HostTensor>{out, added, nothing};
      },
      [&](const std::vector<HostTensor>& got) {
        // two orders of adding half a million numbers: they differ by far less than 1e-12
        EXPECT_NEAR(got[0].at(0) / want, 1, 1e-12);
        EXPECT_NEAR(got[1].at(0) / (want + 5), 1, 1e-12);
        EXPECT_EQ(got[2].at(0), 0);
      });
}

// A rank's share of a parameter may have no elements.
TEST(SumOfSquares, EmptyTensorsAddNothing) {
  const HostTensor x = HostTensor::normal(DType::f32, Shape{20000}, "x");
  const HostTensor empty(DType::f32, Shape{0}), empty_bf16(DType::bf16, Shape{0});
  for_each_device([&](TestDevice& device) {
    const Tensor one[] = {x}, all[] = {empty, x, empty_bf16, empty}, none[] = {empty, empty_bf16};
    HostTensor alone(DType::f64, Shape{1}), beside = alone;
    HostTensor written = HostTensor::of(DType::f64, Shape{1}, {5}), added = written;
    device.operations().sum_of_squares(device.stream(), {one, alone});
    device.operations().sum_of_squares(device.stream(), {all, beside});
    device.operations().sum_of_squares(device.stream(), {none, written});
    device.operations().sum_of_squares(device.stream(), {none, added, Store::add});
    EXPECT_TRUE(beside.same_bits(alone));
    EXPECT_EQ(written.at(0), 0);
    EXPECT_EQ(added.at(0), 5);
  });
}

TEST(SumOfSquares, PassesOnWhatIsNotFinite) {
  for_each_device([](TestDevice& device) {
    for (double bad : {std::numeric_limits<double>::quiet_NaN(), std::numeric_limits<double>::infinity()})
      for (DType dtype : storages) {
        HostTensor x(dtype, Shape{100}), out(DType::f64, Shape{1});
        x.set(57, bad);
        const Tensor view = x;
        device.operations().sum_of_squares(device.stream(), {{&view, 1}, out});
        EXPECT_FALSE(std::isfinite(out.at(0)));
      }
  });
}

TEST(ColumnSum, RefusesMoreRowsThanThereAre) {
  TestDevice device;
  const HostTensor x(DType::f32, Shape{3, 2}), y(DType::f32, Shape{2}), used = HostTensor::integers({4});
  try {
    device.operations().column_sum(device.stream(), {x, y, Store::write, used});
    FAIL();
  } catch (const BugError& error) {
    EXPECT_STREQ(error.what(), "column_sum: rows_in_use exceeds the rows there are");
  }
}

}  // namespace
}  // namespace weft
