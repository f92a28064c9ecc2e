// Nodes that are made to last longer, so that a slow machine can be emulated (ExecutorOptions::least_seconds).
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/execute/ranks.h"

namespace weft {
namespace {

RankCase parallel_case() {
  RankCase c = small_case("[*-]");
  c.micro_batches = 2;
  c.parallel = true;
  return c;
}

std::vector<MicroBatch> batches_of(const RankCase& c) { return {batch_of(c, 0, 0), batch_of(c, 0, 1)}; }

TEST(LeastSeconds, nodes_last_as_long_and_compute_the_same) {
  const RankCase c = parallel_case();
  CpuDevice device;
  SessionOptions o = options_of(c, nullptr);
  Session plain(device, o);
  const Plan& plan = plain.plan().plan();
  for (std::size_t i = 0; i < plan.nodes.size(); ++i) o.ranks.executor.least_seconds.push_back(i % 3 == 0 ? 2e-3 : 0);
  Session slow(device, o);
  plain.initialise_parameters(5);
  slow.initialise_parameters(5);
  slow.executor()->keep_times(true);
  EXPECT_EQ(slow.step(batches_of(c), 1e-2, 0).loss, plain.step(batches_of(c), 1e-2, 0).loss);
  const std::vector<NodeTime>& times = slow.executor()->times();
  ASSERT_EQ(times.size(), plan.nodes.size());
  for (std::size_t i = 0; i < times.size(); ++i)
    EXPECT_GE(times[i].end - times[i].start + 1e-7, o.ranks.executor.least_seconds[i])  // 1e-7: clocks are doubles
        << plan.name_of(plan.nodes[i]);
}

TEST(LeastSeconds, are_of_the_nodes_of_the_plan) {
  CpuDevice device;
  SessionOptions o = options_of(parallel_case(), nullptr);
  o.ranks.executor.least_seconds = {1e-3, 1e-3};
  try {
    const Session session(device, o);
    FAIL() << "accepted";
  } catch (const BugError& e) {
    EXPECT_THAT(e.what(), testing::HasSubstr("times of "));
    EXPECT_THAT(e.what(), testing::HasSubstr(" nodes, not 2"));
  }
}

}  // namespace
}  // namespace weft
