// A step that throws, at any of its nodes: whether the state before it is still there.
#include <gtest/gtest.h>

#include "tests/train/resumed_runs.h"

namespace weft {
namespace {

struct State {
  std::string weights, states;
  bool operator==(const State&) const = default;
};
State state_of(Session& session) { return {weight_digest(session), state_digest(session)}; }

constexpr int good_steps = 2;

void take_steps(Session& session, const RankCase& c, int first, int last) {
  for (int step = first; step < last; ++step) {
    std::vector<MicroBatch> batches;
    for (int m = 0; m < c.micro_batches; ++m) batches.push_back(batch_of(c, step, m));
    session.step(batches, 1e-2, 0.1);
  }
}

// After steps without a fault.
State straight(const RankCase& c) {
  CpuDevice device;
  Session session(device, options_of(c, nullptr));
  session.initialise_parameters(5);
  take_steps(session, c, 0, good_steps);
  return state_of(session);
}

TEST(FailedStep, KeepsTheStateBeforeItUntilItsUpdatesBegin) {
  for (const auto& [late, parallel, clip] :
       {std::tuple{false, false, 1.}, {false, true, 1.}, {true, false, 1.}, {true, true, 1.}, {true, true, 0.}}) {
    RankCase c = resumed_case(1, 1, DType::bf16);
    c.overlap_updates = late;
    c.parallel = parallel;
    c.clip = clip;
    const State before = straight(c);
    const Plan plan = plan_step(training_step(options_of(c, nullptr))).plan;
    int kept = 0, lost = 0;
    for (std::int64_t node = 0; node < std::ssize(plan.nodes); node += 3) {
      SCOPED_TRACE(fmt::format("late {}, parallel {}, clip {}, node {}, {}", late, parallel, clip, node,
                               plan.name_of(plan.nodes[static_cast<std::size_t>(node)])));
      c.fault = {InjectedFault::Kind::error, node, 0, good_steps + 1};
      CpuDevice device;
      Session session(device, options_of(c, nullptr));
      session.initialise_parameters(5);
      take_steps(session, c, 0, good_steps);
      EXPECT_THROW(take_steps(session, c, good_steps, good_steps + 1), RunError);
      const bool same = session.kept_by_failed_step();
      (same ? kept : lost) += 1;
      if (same) {
        EXPECT_EQ(state_of(session), before);
      }
    }
    // Most of a step is its forward and backward pass, in which nothing of its own is updated where there is a norm.
    EXPECT_GT(kept, clip > 0 ? lost : 0);
    EXPECT_GT(lost, 0);
  }
}

// What is wrong with a step's data is found before any of its nodes runs.
TEST(FailedStep, KeepsTheStateWhereItsDataIsWrong) {
  for (const bool late : {false, true}) {
    RankCase c = resumed_case(1, 1, DType::f32);
    c.overlap_updates = late;
    CpuDevice device;
    Session session(device, options_of(c, nullptr));
    session.initialise_parameters(5);
    take_steps(session, c, 0, good_steps);
    std::vector<MicroBatch> batches;
    for (int m = 0; m < c.micro_batches; ++m) batches.push_back(batch_of(c, good_steps, m));
    batches.back().tokens.back() = static_cast<std::int32_t>(c.config.vocabulary);
    EXPECT_THROW(session.step(batches, 1e-2, 0.1), UserError);
    EXPECT_TRUE(session.kept_by_failed_step());
    EXPECT_EQ(state_of(session), straight(c));
  }
}

}  // namespace
}  // namespace weft
