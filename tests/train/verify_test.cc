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

TEST(StepDifference, SaysWhatIsBeyond) {
  StepDifference d;
  d.worst_weight = "head";
  d.norm_difference = d.weight_difference = 1e-3;
  d.loss_difference = 1e-2;
  EXPECT_EQ(d.beyond(1e-2), "");
  EXPECT_EQ(d.beyond(5e-3), "loss");
  EXPECT_EQ(d.beyond(1e-4), "loss, gradient norm, head");
  d.loss_difference = 0;
  d.norm_difference = std::numeric_limits<double>::quiet_NaN();
  EXPECT_EQ(d.beyond(1), "gradient norm");
}

}  // namespace
}  // namespace weft
