// The kernels' own exp, log, tanh and sigmoid against the library's in double. Compiled here for the baseline; the
// kernels compile the same text for wider instruction sets.
#define WEFT_ISA isa_test
#include "weft/device/cpu/kernels/fast_math.h"

#include <cstring>

#include <gtest/gtest.h>

namespace weft {
namespace {

using isa_test::fast_exp;
using isa_test::fast_exp_negative;
using isa_test::fast_log;
using isa_test::fast_sigmoid;
using isa_test::fast_tanh;

constexpr float infinity = std::numeric_limits<float>::infinity();
constexpr float nan_value = std::numeric_limits<float>::quiet_NaN();

// |got - want| in units of want's last place.
double ulps(float got, double want) {
  if (got == static_cast<float>(want)) return 0;
  int exponent = 0;
  std::frexp(want, &exponent);
  return std::abs(static_cast<double>(got) - want) / std::ldexp(1.0, std::max(exponent - 24, -149));
}

// Over floats of all magnitudes between low and high.
template <class Got, class Want>
double worst(float low, float high, const Got& got, const Want& want) {
  double most = 0;
  for (std::uint64_t bits = 0; bits < (std::uint64_t{1} << 32); bits += 2003) {
    const auto low_bits = static_cast<std::uint32_t>(bits);
    float x = 0;
    std::memcpy(&x, &low_bits, sizeof x);
    if (x >= low && x <= high) most = std::max(most, ulps(got(x), want(static_cast<double>(x))));
  }
  return most;
}

TEST(FastMath, ExpIsWithinTwoUnits) {
  EXPECT_LE(worst(
                -103.5f, 88.7f, [](float x) { return fast_exp(x); }, [](double x) { return std::exp(x); }),
            2);
  EXPECT_LE(worst(
                -86.9f, 0.0f, [](float x) { return fast_exp_negative(x); }, [](double x) { return std::exp(x); }),
            2);
}

TEST(FastMath, LogIsWithinTwoUnits) {
  EXPECT_LE(worst(
                1e-45f, 3.4e38f, [](float x) { return fast_log(x); }, [](double x) { return std::log(x); }),
            2);
}

TEST(FastMath, TanhAndSigmoidAreWithinThreeUnits) {
  EXPECT_LE(worst(
                -100.0f, 100.0f, [](float x) { return fast_tanh(x); }, [](double x) { return std::tanh(x); }),
            3);
  EXPECT_LE(
      worst(
          -86.0f, 100.0f, [](float x) { return fast_sigmoid(x); }, [](double x) { return 1 / (1 + std::exp(-x)); }),
      3);
}

TEST(FastMath, RangesEndAsTheyShould) {
  EXPECT_EQ(fast_exp(89.0f), infinity);
  EXPECT_EQ(fast_exp(infinity), infinity);
  EXPECT_EQ(fast_exp(-104.1f), 0.0f);
  EXPECT_EQ(fast_exp(-infinity), 0.0f);
  EXPECT_EQ(fast_exp(0.0f), 1.0f);
  EXPECT_EQ(fast_exp_negative(-infinity), 0.0f);
  EXPECT_EQ(fast_exp_negative(-1e30f), 0.0f);
  EXPECT_EQ(fast_log(0.0f), -infinity);
  EXPECT_EQ(fast_log(infinity), infinity);
  EXPECT_TRUE(std::isnan(fast_log(-1.0f)));
  EXPECT_EQ(fast_tanh(infinity), 1.0f);
  EXPECT_EQ(fast_tanh(-infinity), -1.0f);
  EXPECT_EQ(fast_sigmoid(-infinity), 0.0f);
  EXPECT_EQ(fast_sigmoid(infinity), 1.0f);
}

TEST(FastMath, NanStaysNan) {
  EXPECT_TRUE(std::isnan(fast_exp(nan_value)));
  EXPECT_TRUE(std::isnan(fast_exp_negative(nan_value)));
  EXPECT_TRUE(std::isnan(fast_log(nan_value)));
  EXPECT_TRUE(std::isnan(fast_tanh(nan_value)));
  EXPECT_TRUE(std::isnan(fast_sigmoid(nan_value)));
}

}  // namespace
}  // namespace weft
