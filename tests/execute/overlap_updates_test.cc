// Updates that a step leaves to the next: whatever reads weights in between sees them done. (Orders: bitwise_test.cc.)
#include <limits>

#include <gtest/gtest.h>

#include "tests/execute/parameter_numbers.h"
#include "tests/execute/ranks.h"

namespace weft {
namespace {

RankCase tied_case() {
  RankCase c = small_case("[*E]-E");
  c.config.tied_embeddings = true;
  return c;
}

SessionOptions options_of(RankCase c, bool overlap, bool parallel, double clip = 1) {
  c.dtype = DType::bf16;
  c.micro_batches = 1;
  c.overlap_updates = overlap;
  c.parallel = parallel;
  c.clip = clip;
  return options_of(c, nullptr);
}

std::vector<double> weights_of(Session& session) {
  std::vector<double> all;
  each_numbers(session, Content::weight, [&](const ParameterPart&, const std::vector<double>& values) {
    all.insert(all.end(), values.begin(), values.end());
  });
  return all;
}

TEST(LateUpdates, are_done_before_anything_reads_or_sets_weights) {
  const RankCase c = tied_case();
  CpuDevice device;
  // Everything that a session returns, with its weights read after some of the steps.
  const auto run = [&](bool overlap, bool parallel, double clip) {
    std::vector<double> returned;
    Session session(device, options_of(c, overlap, parallel, clip));
    session.initialise_parameters(5);
    const auto step = [&](int number) {
      const std::vector<MicroBatch> batches{batch_of(c, number, 0)};
      const StepResult r = session.step(batches, 1e-2, 0.1);
      returned.push_back(r.loss);
      returned.push_back(r.gradient_norm.value_or(0));
    };
    const auto keep = [&](const std::vector<double>& values) {
      returned.insert(returned.end(), values.begin(), values.end());
    };
    step(0);
    step(1);
    returned.push_back(session.evaluator().loss(batch_of(c, 7, 0)));
    step(2);
    keep(weights_of(session));
    step(3);
    step(4);
    const std::vector<std::int32_t> prompt{1, 2, 3};
    keep(session.evaluator().logits(prompt));
    keep(weights_of(session));
    step(5);
    const HostTensor moment = session.parameters().read(TensorId(0), Content::first_moment);
    for (std::int64_t i = 0; i < moment.elements(); ++i) returned.push_back(number_at(moment, i));
    step(5);
    session.flush_updates();
    session.flush_updates();  // there is nothing left to do
    step(6);
    // What the last step has left is forgotten with the weights that it was for.
    session.initialise_parameters(6);
    keep(weights_of(session));
    step(7);
    step(8);
    keep(weights_of(session));
    EXPECT_EQ(session.steps_taken(), 2);
    return returned;
  };
  for (double clip : {1, 0}) {
    const std::vector<double> plain = run(false, false, clip);
    EXPECT_EQ(run(true, false, clip), plain);
    EXPECT_EQ(run(true, true, clip), plain);
  }
}

TEST(LateUpdates, of_a_step_that_is_not_finite_do_nothing) {
  const RankCase c = tied_case();
  CpuDevice device;
  for (double clip : {1, 0}) {
    Session session(device, options_of(c, true, true, clip));
    const auto start = [&](double scale) {
      set_numbers(session, [&](const ParameterPart& part) {
        std::vector<double> values = initial_numbers(part, 5);
        for (double& value : values) value *= scale;
        return values;
      });
    };
    start(std::numeric_limits<double>::quiet_NaN());
    const std::vector<MicroBatch> batches{batch_of(c, 0, 0)};
    EXPECT_FALSE(session.step(batches, 1e-2, 0.1).finite);
    EXPECT_EQ(session.steps_taken(), 0);
    start(1);
    const std::vector<double> before = weights_of(session);
    EXPECT_TRUE(session.step(batches, 0, 0).finite);  // without a learning rate nothing moves
    EXPECT_EQ(weights_of(session), before);
    EXPECT_TRUE(session.step(batches, 1e-2, 0.1).finite);
    EXPECT_NE(weights_of(session), before);
  }
}

}  // namespace
}  // namespace weft
