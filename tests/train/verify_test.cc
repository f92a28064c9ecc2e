#include "weft/train/verify.h"

#include <limits>

#include <gtest/gtest.h>

namespace weft {
namespace {

TEST(StepDifference, IsWithinNothingIfAnyOfItIsNaN) {
  StepDifference good;
  good.loss_difference = good.norm_difference = good.weight_difference = 1e-3;
  EXPECT_TRUE(good.within(1e-3));
  EXPECT_FALSE(good.within(0.9e-3));
  for (double StepDifference::*part :
       {&StepDifference::loss_difference, &StepDifference::norm_difference, &StepDifference::weight_difference}) {
    StepDifference d = good;
    d.*part = std::numeric_limits<double>::quiet_NaN();
    EXPECT_FALSE(d.within(1));
    d.*part = 2;
    EXPECT_FALSE(d.within(1));
  }
}

}  // namespace
}  // namespace weft
