#include "weft/optim/schedule.h"

#include <cmath>

#include <gtest/gtest.h>

namespace weft {
namespace {

// Exact where the formula is exact in binary; within a few rounding errors where it has a cosine, power or root.
constexpr double rounding = 8 * 2.220446049250313e-16;

LearningRateSpec base(DecayStyle style) {
  return {.lr = 1.0, .min_lr = 0.25, .warmup_init = 0, .style = style, .warmup = 0, .decay = 64};
}

TEST(LearningRate, FirstStepOfAWarmUpRunsAtItsInitialValue) {
  LearningRateSpec spec = base(DecayStyle::linear);
  spec.warmup = 16;
  EXPECT_EQ(learning_rate(spec, 0), 0.0);
  EXPECT_EQ(learning_rate(spec, 4), 0.25);
  EXPECT_EQ(learning_rate(spec, 16), 1.0);  // inclusive: the decay has not begun
  spec.warmup_init = 0.5;
  EXPECT_EQ(learning_rate(spec, 0), 0.5);
  EXPECT_EQ(learning_rate(spec, 8), 0.75);
}

TEST(LearningRate, WarmUpMayEndBetweenSamples) {
  LearningRateSpec spec = base(DecayStyle::constant);
  spec.warmup = 2.5;
  EXPECT_DOUBLE_EQ(learning_rate(spec, 1), 0.4);
  EXPECT_DOUBLE_EQ(learning_rate(spec, 2), 0.8);
  EXPECT_EQ(learning_rate(spec, 3), 1.0);
}

TEST(LearningRate, ConstantNeverFalls) {
  const LearningRateSpec spec = base(DecayStyle::constant);
  EXPECT_EQ(learning_rate(spec, 0), 1.0);
  EXPECT_EQ(learning_rate(spec, 1000), 1.0);
}

TEST(LearningRate, Linear) {
  LearningRateSpec spec = base(DecayStyle::linear);
  EXPECT_EQ(learning_rate(spec, 0), 1.0);
  EXPECT_EQ(learning_rate(spec, 16), 0.8125);  // 0.25 + 0.75 * 3/4
  EXPECT_EQ(learning_rate(spec, 64), 0.25);
  EXPECT_EQ(learning_rate(spec, 65), 0.25);
  spec.warmup = 32;  // half way between 32 and 64
  EXPECT_EQ(learning_rate(spec, 48), 0.625);
}

TEST(LearningRate, Cosine) {
  const LearningRateSpec spec = base(DecayStyle::cosine);
  EXPECT_EQ(learning_rate(spec, 0), 1.0);
  EXPECT_NEAR(learning_rate(spec, 16), 0.25 + 0.75 * (2 + std::sqrt(2)) / 4, rounding);
  EXPECT_NEAR(learning_rate(spec, 32), 0.625, rounding);
  EXPECT_NEAR(learning_rate(spec, 64), 0.25, rounding);
  EXPECT_EQ(learning_rate(spec, 65), 0.25);
}

TEST(LearningRate, InverseSquareRoot) {
  LearningRateSpec spec = base(DecayStyle::inverse_square_root);
  spec.warmup = 4;
  spec.decay = 1000;
  EXPECT_EQ(learning_rate(spec, 4), 1.0);
  EXPECT_EQ(learning_rate(spec, 16), 0.5);     // sqrt(4 / 16)
  EXPECT_EQ(learning_rate(spec, 64), 0.25);    // sqrt(4 / 64), and the floor
  EXPECT_EQ(learning_rate(spec, 256), 0.25);   // the floor, not 0.125
  EXPECT_EQ(learning_rate(spec, 1001), 0.25);  // after the end
  spec.warmup = 0;
  spec.min_lr = 0;
  EXPECT_EQ(learning_rate(spec, 0), 1.0);
  EXPECT_EQ(learning_rate(spec, 100), 0.1);
}

TEST(LearningRate, WsdIsFlatThenAnneals) {
  LearningRateSpec spec = base(DecayStyle::wsd);
  spec.warmup = 8;
  spec.wsd = 16;
  const auto at = [&](WsdStyle style, std::int64_t n) {
    spec.wsd_style = style;
    return learning_rate(spec, n);
  };
  for (const WsdStyle style : {WsdStyle::exponential, WsdStyle::linear, WsdStyle::cosine, WsdStyle::minus_sqrt}) {
    EXPECT_EQ(at(style, 4), 0.5);
    EXPECT_EQ(at(style, 9), 1.0);
    EXPECT_EQ(at(style, 48), 1.0);
    EXPECT_NEAR(at(style, 64), 0.25, rounding);
    EXPECT_EQ(at(style, 65), 0.25);
  }
  // A quarter of the way: s = 1/4.
  EXPECT_EQ(at(WsdStyle::linear, 52), 0.25 + 0.75 * 0.75);
  EXPECT_EQ(at(WsdStyle::minus_sqrt, 52), 0.25 + 0.75 * 0.5);
  EXPECT_NEAR(at(WsdStyle::cosine, 52), 0.25 + 0.75 * (2 + std::sqrt(2)) / 4, rounding);
  EXPECT_NEAR(at(WsdStyle::exponential, 52), 0.25 + 0.75 * (2 / std::sqrt(std::sqrt(2)) - 1), rounding);
}

TEST(WeightDecay, RisesFromStartToEnd) {
  WeightDecaySpec spec{.start = 0.5, .end = 1.5, .style = WeightDecayStyle::linear, .length = 32};
  EXPECT_EQ(weight_decay(spec, 0), 0.5);
  EXPECT_EQ(weight_decay(spec, 8), 0.75);
  EXPECT_EQ(weight_decay(spec, 32), 1.5);
  EXPECT_EQ(weight_decay(spec, 33), 1.5);
  spec.style = WeightDecayStyle::cosine;
  EXPECT_NEAR(weight_decay(spec, 0), 0.5, rounding);
  EXPECT_NEAR(weight_decay(spec, 8), 0.5 + (2 - std::sqrt(2)) / 4, rounding);
  EXPECT_NEAR(weight_decay(spec, 16), 1.0, rounding);
  EXPECT_NEAR(weight_decay(spec, 32), 1.5, rounding);
}

TEST(WeightDecay, ConstantIsTheEndValue) {
  const WeightDecaySpec spec{.start = 0.01, .end = 0.01, .style = WeightDecayStyle::constant, .length = 0};
  EXPECT_EQ(weight_decay(spec, 0), 0.01);
  EXPECT_EQ(weight_decay(spec, 1000000), 0.01);
}

}  // namespace
}  // namespace weft
