#include <cmath>

#include "tests/device/everywhere.h"
#include "weft/base/error.h"
#include "weft/base/random.h"
#include "weft/device/operations.h"

namespace weft {
namespace {

struct Routing {
  HostTensor counts, offsets, row_of_slot, slot_of_row, rows_in_use;
  Routing(std::int64_t tokens, std::int64_t k, std::int64_t experts, std::int64_t rows)
      : counts(DType::i32, Shape{experts}),
        offsets(DType::i32, Shape{experts + 1}),
        row_of_slot(DType::i32, Shape{tokens, k}),
        slot_of_row(DType::i32, Shape{rows}),
        rows_in_use(DType::i32, Shape{1}) {
    slot_of_row.fill(77);  // rows beyond those in use are not written
  }
  std::vector<HostTensor> all() const { return {counts, offsets, row_of_slot, slot_of_row, rows_in_use}; }
};

// Different experts for a token; every seventh slot has none.
HostTensor random_indices(std::int64_t tokens, std::int64_t k, std::int64_t experts) {
  HostTensor indices(DType::i32, Shape{tokens, k});
  for (std::int64_t t = 0; t < tokens; ++t)
    for (std::int64_t j = 0; j < k; ++j) {
      const double u = random_uniform(5, static_cast<std::uint64_t>(t));
      const auto first = static_cast<std::int64_t>(u * u * static_cast<double>(experts));  // some are chosen more often
      indices.set(t, j, (t * k + j) % 7 == 6 ? -1.0 : static_cast<double>((first + 3 * j) % experts));
    }
  return indices;
}

TEST(RouteRows, SortsStablyByExpert) {
  struct Case {
    std::int64_t tokens, k, experts, alignment;
  };
  for (const Case& c : {Case{1, 1, 1, 1}, Case{7, 2, 5, 1}, Case{100, 3, 8, 16}, Case{6000, 4, 33, 8}}) {
    const HostTensor indices = random_indices(c.tokens, c.k, c.experts);
    const std::int64_t slots = c.tokens * c.k, rows = slots + c.experts * c.alignment;
    Routing want(c.tokens, c.k, c.experts, rows);
    std::int64_t row = 0;
    want.row_of_slot.fill(-1);
    for (std::int64_t e = 0; e < c.experts; ++e) {
      want.offsets.set(e, static_cast<double>(row));
      std::int64_t count = 0;
      for (std::int64_t slot = 0; slot < slots; ++slot)
        if (indices.at(slot) == static_cast<double>(e)) {
          want.row_of_slot.set(slot, static_cast<double>(row));
          want.slot_of_row.set(row++, static_cast<double>(slot));
          ++count;
        }
      want.counts.set(e, static_cast<double>(count));
      while (row % c.alignment != 0) want.slot_of_row.set(row++, -1);
    }
    want.offsets.set(c.experts, static_cast<double>(row));
    want.rows_in_use.set(0, static_cast<double>(row));
    everywhere(
        [&](TestDevice& device) {
          Routing got(c.tokens, c.k, c.experts, rows);
          device.operations().route_rows(device.stream(), {indices, got.counts, got.offsets, got.row_of_slot,
                                                           got.slot_of_row, got.rows_in_use, c.alignment});
          return got.all();
        },
        [&](const std::vector<HostTensor>& got) {
          for (std::size_t i = 0; i < got.size(); ++i) EXPECT_TRUE(got[i].same_bits(want.all()[i])) << "tensor " << i;
        });
  }
}

TEST(RouteRows, RefusesTooFewRows) {
  TestDevice device;
  Routing got(10, 2, 4, 19);
  HostTensor indices(DType::i32, Shape{10, 2});
  const auto message = [&]() -> std::string {
    try {
      device.operations().route_rows(
          device.stream(), {indices, got.counts, got.offsets, got.row_of_slot, got.slot_of_row, got.rows_in_use});
    } catch (const BugError& error) {
      return error.what();
    }
    return "";
  };
  EXPECT_EQ(message(), "route_rows: more rows than slot_of_row has");
  indices.set(3, 4);
  EXPECT_EQ(message(), "route_rows: an index beyond the experts");
}

TEST(GatherRows, CopiesRowsAndZeroes) {
  for (DType dtype : {DType::f32, DType::f64, DType::bf16, DType::i32})
    for (std::int64_t columns : {1, 2, 3, 17, 65, 1000}) {
      const std::int64_t sources = 9, rows = 50, used = 47, divisor = 3;
      const HostTensor x = HostTensor::normal(dtype, Shape{sources, columns}, "x", 100, columns + 1);
      HostTensor index(DType::i32, Shape{rows});
      std::vector<double> want(static_cast<std::size_t>(rows * columns), 7);
      for (std::int64_t r = 0; r < rows; ++r) {
        const std::int64_t from = (r * 11) % (sources * divisor + 4) - 4;
        index.set(r, static_cast<double>(from));
        for (std::int64_t c = 0; c < columns && r < used; ++c)
          want[static_cast<std::size_t>(r * columns + c)] = from < 0 ? 0 : x.at(from / divisor, c);
      }
      const HostTensor in_use = HostTensor::integers({static_cast<std::int32_t>(used)});
      everywhere(
          [&](TestDevice& device) {
            HostTensor y(dtype, Shape{rows, columns}, columns + 2);
            y.fill(7);
            device.operations().gather_rows(device.stream(), {x, index, y, in_use, divisor});
            return std::vector<HostTensor>{y};
          },
          [&](const std::vector<HostTensor>& got) {
            EXPECT_EQ(got[0].values(), want);
            EXPECT_TRUE(got[0].gaps_intact());
          });
    }
}

TEST(SumRows, AddsInOrderWithResidualAndExtra) {
  for (DType dtype : storages)
    for (DType out : {dtype, accumulator_of(dtype)})
      for (const auto& [columns, k] : {std::pair{1, 1}, std::pair{3, 2}, std::pair{17, 5}, std::pair{65, 4},
                                       std::pair{1000, 1}, std::pair{2100, 3}}) {
        const std::int64_t tokens = columns >= 1000 ? 21 : 4, rows = 30;
        const HostTensor x = HostTensor::normal(dtype, Shape{rows, columns}, "x", 1, columns + 4);
        const HostTensor residual = HostTensor::normal(out, Shape{tokens, columns}, "residual", 1, columns + 1);
        const HostTensor extra = HostTensor::normal(dtype, Shape{tokens, columns}, "extra");
        HostTensor index(DType::i32, Shape{tokens, k});
        for (std::int64_t i = 0; i < tokens * k; ++i) index.set(i, static_cast<double>((i * 13) % (rows + 3) - 3));
        for (int given = 0; given < 4; ++given) {
          std::vector<double> want, magnitudes;
          for (std::int64_t t = 0; t < tokens; ++t)
            for (std::int64_t c = 0; c < columns; ++c) {
              double sum = 0, magnitude = 0;
              const auto add = [&](double value) { sum += value, magnitude += std::abs(value); };
              if (given & 1) add(residual.at(t, c));
              if (given & 2) add(extra.at(t, c));
              for (std::int64_t j = 0; j < k; ++j)
                if (index.at(t, j) >= 0) add(x.at(static_cast<std::int64_t>(index.at(t, j)), c));
              want.push_back(sum);
              magnitudes.push_back(magnitude);
            }
          everywhere(
              [&](TestDevice& device) {
                HostTensor y(out, Shape{tokens, columns}, columns + 2), on_residual = residual;
                const Tensor added = given & 2 ? extra.view() : Tensor{};
                device.operations().sum_rows(device.stream(),
                                             {x, index, y, given & 1 ? residual.view() : Tensor{}, added});
                if (given & 1) {
                  device.operations().sum_rows(device.stream(), {x, index, on_residual, on_residual, added});
                  EXPECT_EQ(y.values(), on_residual.values());
                }
                return std::vector<HostTensor>{y};
              },
              [&](const std::vector<HostTensor>& got) { expect_close(got[0], want, k + 2, magnitudes); });
        }
      }
}

// Rows gathered from tokens and rows summed into tokens are each other's gradient: <G x, y> = <x, S y>.
TEST(SumRows, IsTheAdjointOfGatherRows) {
  TestDevice device;
  const Operations& ops = device.operations();
  const std::int64_t tokens = 40, k = 3, experts = 6, alignment = 4, columns = 19;
  const std::int64_t rows = tokens * k + experts * alignment;
  const HostTensor indices = random_indices(tokens, k, experts);
  Routing routing(tokens, k, experts, rows);
  ops.route_rows(device.stream(), {indices, routing.counts, routing.offsets, routing.row_of_slot, routing.slot_of_row,
                                   routing.rows_in_use, alignment});
  const HostTensor x = HostTensor::normal(DType::f64, Shape{tokens, columns}, "x");
  HostTensor y = HostTensor::normal(DType::f64, Shape{rows, columns}, "y"), gathered(DType::f64, Shape{rows, columns});
  HostTensor summed(DType::f64, Shape{tokens, columns});
  ops.gather_rows(device.stream(), {x, routing.slot_of_row, gathered, routing.rows_in_use, k});
  ops.sum_rows(device.stream(), {y, routing.row_of_slot, summed});
  EXPECT_NEAR(weighted_sum(gathered, y), weighted_sum(x, summed), 1e-11);
}

// Eight experts, two on each of four holders; each holder is three ranks.
TEST(CopyChoices, GoToEveryRankOfTheExpert) {
  const HostTensor indices = HostTensor::integers({0, 1, 2, 7, -1, 5});
  everywhere(
      [&](TestDevice& device) {
        HostTensor y(DType::i32, Shape{2, 9}), same(DType::i32, Shape{6});
        device.operations().copy_choices(device.stream(), {indices, y, 2, 3});
        device.operations().copy_choices(device.stream(), {indices, same, 2, 1});
        return std::vector<HostTensor>{y, same};
      },
      [&](const std::vector<HostTensor>& got) {
        EXPECT_EQ(got[0].values(),
                  (std::vector<double>{0, 2, 4, 1, 3, 5, 6, 8, 10, 19, 21, 23, -1, -1, -1, 13, 15, 17}));
        EXPECT_EQ(got[1].values(), indices.values());
      });
}

}  // namespace
}  // namespace weft
