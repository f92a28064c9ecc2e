#include "weft/train/report.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "weft/device/cpu/device.h"
#include "weft/execute/product_peak.h"

namespace weft {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

TEST(LogLine, gives_the_share_of_the_peak_where_it_was_measured) {
  LogLine line;
  line.flops_per_second = 333.7e12;
  EXPECT_THAT(to_text(line), HasSubstr("| throughput (GFLOP/s): 333700.0 | tokens per second"));
  EXPECT_THAT(to_text(line), Not(HasSubstr("peak")));
  line.product_peak = 785.7e12;
  EXPECT_THAT(to_text(line),
              HasSubstr("| throughput (TFLOP/s): 333.7 | share of the measured GEMM peak: 42.5 % | tokens per second"));
}

TEST(PlanReport, gives_the_peak_where_it_was_measured) {
  PlanReport report;
  EXPECT_THAT(to_text(report), Not(HasSubstr("peak  ")));
  report.product_peak = 785.7e12;
  EXPECT_THAT(to_text(report), HasSubstr("peak          785.7 TFLOP/s in large products, measured\n"));
}

TEST(PlanReport, gives_what_communicators_hold_where_there_are_some) {
  PlanReport report;
  EXPECT_THAT(to_text(report), Not(HasSubstr("links")));
  report.communicator_bytes = 373 << 20;
  EXPECT_THAT(to_text(report), HasSubstr("  links       373.00 MiB in addition, between ranks, measured"));
}

// A device without a clock of its own has no peak, but the products still run.
TEST(ProductPeak, runs_at_any_size) {
  CpuDevice device;
  for (const DType dtype : {DType::f32, DType::bf16})
    for (const std::int64_t size : {1, 33, 600}) EXPECT_GE(measure_product_peak(device, dtype, size), 0);
}

}  // namespace
}  // namespace weft
