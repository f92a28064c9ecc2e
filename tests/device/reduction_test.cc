#include "weft/device/reduction.h"

#include <cmath>
#include <limits>

#include <gtest/gtest.h>

namespace weft {
namespace {

template <class T>
std::vector<T> reduce(Reduction reduction, const std::vector<std::vector<T>>& inputs) {
  std::vector<const std::byte*> pointers;
  for (const auto& input : inputs) pointers.push_back(reinterpret_cast<const std::byte*>(input.data()));
  std::vector<T> out(inputs[0].size());
  reduce_in_rank_order(reduction, dtype_of<T>(), reinterpret_cast<std::byte*>(out.data()), pointers,
                       static_cast<std::int64_t>(out.size()));
  return out;
}

TEST(Reduce, AddsFromTheLeft) {
  // (1e8 + 1) - 1e8 is 0 in float, 1e8 - 1e8 + 1 is 1: the order shows.
  EXPECT_EQ(reduce<float>(Reduction::sum, {{1e8f}, {1.0f}, {-1e8f}})[0], 0.0f);
  EXPECT_EQ(reduce<float>(Reduction::sum, {{1e8f}, {-1e8f}, {1.0f}})[0], 1.0f);
}

TEST(Reduce, RoundsBfloat16Once) {
  // 256 + 1 + 1 = 258, representable; rounding after each addition would stay at 256.
  const std::vector<bfloat16> big{bfloat16(256.0f)}, one{bfloat16(1.0f)};
  EXPECT_EQ(float(reduce<bfloat16>(Reduction::sum, {big, one, one})[0]), 258.0f);
}

TEST(Reduce, WholeNumbersWrap) {
  constexpr std::int32_t most = std::numeric_limits<std::int32_t>::max();
  EXPECT_EQ(reduce<std::int32_t>(Reduction::sum, {{most}, {1}})[0], std::numeric_limits<std::int32_t>::min());
  EXPECT_EQ(reduce<std::uint8_t>(Reduction::sum, {{200}, {100}})[0], 44);
}

TEST(Reduce, MaximumsKeepSignsAndNaN) {
  EXPECT_EQ((reduce<std::int64_t>(Reduction::max, {{-5, 7}, {-3, 2}, {-9, 6}})), (std::vector<std::int64_t>{-3, 7}));
  const float nan = std::numeric_limits<float>::quiet_NaN();
  for (const auto& inputs : {std::vector<std::vector<float>>{{nan}, {1}, {2}}, {{1}, {nan}, {2}}, {{1}, {2}, {nan}}})
    EXPECT_TRUE(std::isnan(reduce<float>(Reduction::max, inputs)[0]));
}

TEST(Reduce, MayWriteOverAnInput) {
  std::vector<double> a(5000, 1.5), b(5000, 2.5);
  const std::byte* inputs[] = {reinterpret_cast<std::byte*>(a.data()), reinterpret_cast<std::byte*>(b.data())};
  reduce_in_rank_order(Reduction::sum, DType::f64, reinterpret_cast<std::byte*>(b.data()), inputs, 5000);
  EXPECT_EQ(b, std::vector<double>(5000, 4.0));
}

}  // namespace
}  // namespace weft
