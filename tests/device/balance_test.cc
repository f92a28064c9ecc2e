// Counts of experts, capacity, the router's losses, the bias of the choice.
#include <algorithm>
#include <cmath>
#include <limits>

#include "tests/device/everywhere.h"
#include "weft/base/error.h"
#include "weft/device/operations.h"

namespace weft {
namespace {

using Score = RouterSpec::Score;

TEST(CountExperts, CountsChoicesOfEverySequence) {
  const HostTensor indices = HostTensor::of(DType::i32, {4, 2}, {0, 2, 2, -1, 1, 2, 2, 0});
  everywhere(
      [&](TestDevice& d) {
        HostTensor counts(DType::f64, {2, 3});
        d.operations().count_experts(d.stream(), {indices, {}, counts, {}, 2, 2});
        return std::vector{counts};
      },
      [](const std::vector<HostTensor>& r) {
        EXPECT_EQ(r[0].values(), (std::vector<double>{1, 0, 2, 1, 1, 2}));
      });
}

TEST(CountExperts, GoesOnFromWhatWasThere) {
  TestDevice d;
  const HostTensor indices = HostTensor::of(DType::i32, {3, 1}, {0, 2, 2});
  const HostTensor before = HostTensor::of(DType::f64, {3}, {10, 20, 30});
  HostTensor counts = HostTensor::of(DType::f64, {3}, {5, 5, 5});
  d.operations().count_experts(d.stream(), {indices, {}, counts, before, 1, 1});
  EXPECT_EQ(counts.values(), (std::vector<double>{11, 20, 32}));
  d.operations().count_experts(d.stream(), {indices, {}, counts, {}, 1, 1, Store::add});
  EXPECT_EQ(counts.values(), (std::vector<double>{12, 20, 34}));
}

TEST(CountExperts, TakesTheLargestScoresAndTheLowerIndexOfEqualOnes) {
  TestDevice d;
  for (DType acc : {DType::f32, DType::f64}) {
    const HostTensor scores = HostTensor::of(acc, {2, 4}, {0.1, 0.5, 0.5, 0.2, 0.3, 0.3, 0.3, 0.3});
    HostTensor counts(DType::f64, {1, 4});
    d.operations().count_experts(d.stream(), {{}, scores, counts, {}, 2, 1});
    EXPECT_EQ(counts.values(), (std::vector<double>{1, 2, 1, 0}));
  }
}

TEST(DropChoices, KeepsTheHeaviestOrTheEarliest) {
  // Expert 0 is chosen by slots 0, 2, 4, 6 with weights .2 .9 .2 .5
  const HostTensor indices = HostTensor::of(DType::i32, {4, 2}, {0, 1, 0, 1, 0, 2, 0, -1});
  const HostTensor weights = HostTensor::of(DType::f32, {4, 2}, {.2, .8, .9, .1, .2, .7, .5, .5});
  using Policy = DropChoices::Policy;
  const auto kept = [&](Policy policy, std::int64_t capacity) {
    TestDevice d;
    HostTensor out(DType::i32, {4, 2});
    d.operations().drop_choices(d.stream(), {policy, indices, weights, out, 3, capacity});
    return out.values();
  };
  EXPECT_EQ(kept(Policy::probabilities, 2), (std::vector<double>{-1, 1, 0, 1, -1, 2, 0, -1}));
  EXPECT_EQ(kept(Policy::probabilities, 3), (std::vector<double>{0, 1, 0, 1, -1, 2, 0, -1})) << "ties: earlier tokens";
  EXPECT_EQ(kept(Policy::position, 2), (std::vector<double>{0, 1, 0, 1, -1, 2, -1, -1}));
  EXPECT_EQ(kept(Policy::position, 1), (std::vector<double>{0, 1, -1, -1, -1, 2, -1, -1}));
  EXPECT_EQ(kept(Policy::position, 4), indices.values());
  EXPECT_EQ(kept(Policy::position, 0), std::vector<double>(8, -1));
}

TEST(RouteRows, PadsEveryExpertToTheCapacity) {
  TestDevice d;
  const HostTensor indices = HostTensor::of(DType::i32, {3, 2}, {2, 0, -1, 2, 0, -1});
  HostTensor counts(DType::i32, {3}), offsets(DType::i32, {4}), rows(DType::i32, {3, 2}), slots(DType::i32, {9}),
      used(DType::i32, {1});
  d.operations().route_rows(d.stream(), {indices, counts, offsets, rows, slots, used, 1, 3});
  EXPECT_EQ(counts.values(), (std::vector<double>{3, 3, 3}));
  EXPECT_EQ(offsets.values(), (std::vector<double>{0, 3, 6, 9}));
  EXPECT_EQ(slots.values(), (std::vector<double>{1, 4, -1, -1, -1, -1, 0, 3, -1}));
  EXPECT_EQ(rows.values(), (std::vector<double>{6, 0, -1, 7, 1, -1}));
  EXPECT_EQ(used.values(), std::vector<double>{9});
  EXPECT_THROW(d.operations().route_rows(d.stream(), {indices, counts, offsets, rows, slots, used, 1, 1}), BugError);
}

struct Case {
  Score score;
  std::int64_t tokens, experts, sequences;
  double balance, z;
};
const Case cases[] = {{Score::softmax, 12, 5, 1, 0.7, 0},  {Score::softmax, 12, 5, 3, 0.7, 0.3},
                      {Score::sigmoid, 8, 6, 2, 1.1, 0},   {Score::sigmoid, 8, 6, 1, 0, 0.2},
                      {Score::softmax, 1, 1, 1, 1, 1},     {Score::sigmoid, 1, 3, 1, 0.5, 0.5},
                      {Score::softmax, 700, 24, 2, 1, 0.1}};

// scale * (losses), by the formulas of the header, one after another in double.
std::array<double, 2> reference(const Case& c, const HostTensor& logits, const HostTensor& counts) {
  double balance = 0, z = 0;
  for (std::int64_t t = 0; t < c.tokens; ++t) {
    const std::int64_t s = t / (c.tokens / c.sequences);
    double total = 0, of_scores = 0, mass = 0;
    for (std::int64_t e = 0; e < c.experts; ++e) {
      const double logit = logits.at(t, e);
      mass += std::exp(logit);
      of_scores += c.score == Score::softmax ? std::exp(logit) : 1 / (1 + std::exp(-logit));
      total += counts.at(s, e);
    }
    for (std::int64_t e = 0; e < c.experts; ++e) {
      const double logit = logits.at(t, e);
      const double score = c.score == Score::softmax ? std::exp(logit) : 1 / (1 + std::exp(-logit));
      balance += score / of_scores * static_cast<double>(c.experts) * counts.at(s, e) / total;
    }
    z += std::log(mass) * std::log(mass);
  }
  const auto tokens = static_cast<double>(c.tokens);
  return {balance / tokens, z / tokens};
}

HostTensor counts_of(const Case& c) {
  HostTensor counts(DType::f64, {c.sequences, c.experts});
  for (std::int64_t i = 0; i < counts.elements(); ++i) counts.set(i, static_cast<double>(1 + i * 7 % 5));
  return counts;
}

std::vector<HostTensor> run(TestDevice& d, const Case& c, DType acc, const HostTensor& logits, double scale) {
  RouterSpec spec;
  spec.score = c.score;
  spec.choose_first = false;
  HostTensor scores(acc, {c.tokens, c.experts}), weights(acc, {c.tokens, 1}), indices(DType::i32, {c.tokens, 1});
  d.operations().router(d.stream(), {spec, logits, {}, scores, weights, indices});
  HostTensor dlogits(acc, {c.tokens, c.experts}), balance(DType::f64, {1}), z(DType::f64, {1});
  dlogits.fill(0.25);  // it is added to
  const HostTensor counts = counts_of(c), factor = HostTensor::of(DType::f64, {1}, {scale});
  d.operations().balance_losses(
      d.stream(), {c.score, scores, c.z != 0 ? logits.view() : Tensor{}, c.balance != 0 ? counts.view() : Tensor{},
                   factor, dlogits, balance, z, c.sequences, c.balance, c.z});
  return {dlogits, balance, z};
}

TEST(BalanceLosses, AreTheirFormulasAndTheirGradientsTheirDifferences) {
  for (const Case& c : cases) {
    HostTensor logits = HostTensor::normal(DType::f64, {c.tokens, c.experts}, "logits");
    const HostTensor counts = counts_of(c);
    const double scale = 0.5;
    everywhere([&](TestDevice& d) { return run(d, c, DType::f64, logits, scale); },
               [&](const std::vector<HostTensor>& r) {
                 const auto [balance, z] = reference(c, logits, counts);
                 EXPECT_NEAR(r[1].at(0), c.balance != 0 ? scale * balance : 0, 1e-12 * std::abs(balance));
                 EXPECT_NEAR(r[2].at(0), c.z != 0 ? scale * z : 0, 1e-12 * std::abs(z));
                 std::vector<double> analytic = r[0].values();
                 for (double& value : analytic) value -= 0.25;
                 if (c.experts == 1) return;  // a softmax of one is constant: differences are rounding
                 check_gradient(
                     [&] {
                       const auto [b, q] = reference(c, logits, counts);
                       return scale * (c.balance * b + c.z * q);
                     },
                     logits, analytic);
               });
  }
}

TEST(BalanceLosses, InFloatAreTheDoubleOnes) {
  for (const Case& c : cases) {
    TestDevice d;
    const HostTensor coarse = HostTensor::normal(DType::f32, {c.tokens, c.experts}, "logits");
    const HostTensor fine = HostTensor::of(DType::f64, {c.tokens, c.experts}, coarse.values());
    const std::vector<HostTensor> got = run(d, c, DType::f32, coarse, 1), want = run(d, c, DType::f64, fine, 1);
    expect_close(got[0], want[0].values(), 8 * c.experts + 40);
    for (std::size_t i : {std::size_t{1}, std::size_t{2}})
      EXPECT_NEAR(got[i].at(0), want[i].at(0),
                  (8.0 * static_cast<double>(c.experts) + 40) * 6e-8 * (1 + want[i].at(0)));
  }
}

TEST(BalanceLosses, EqualCountsAndScoresGiveOne) {
  TestDevice d;
  const HostTensor scores = HostTensor::of(DType::f64, {2, 4}, std::vector<double>(8, 0.25));
  const HostTensor counts = HostTensor::of(DType::f64, {1, 4}, {6, 6, 6, 6}),
                   one = HostTensor::of(DType::f64, {1}, {1});
  HostTensor dlogits(DType::f64, {2, 4}), loss(DType::f64, {1});
  d.operations().balance_losses(d.stream(), {Score::softmax, scores, {}, counts, one, dlogits, loss, {}, 1, 1, 0});
  EXPECT_DOUBLE_EQ(loss.at(0), 1);
  for (double gradient : dlogits.values()) EXPECT_NEAR(gradient, 0, 1e-16);
}

TEST(UpdateExpertBias, RaisesWhatIsChosenTooSeldom) {
  TestDevice d;
  HostTensor bias = HostTensor::of(DType::f32, {4}, {0, 1, 0, 0}), step(DType::f64, {StepValues::count});
  const HostTensor counts = HostTensor::of(DType::f64, {4}, {2, 4, 6, 4});
  d.operations().update_expert_bias(d.stream(), {bias, counts, step, 0.5});
  EXPECT_EQ(bias.values(), (std::vector<double>{0, 1, 0, 0})) << "the step was not finite";
  step.set(StepValues::finite, 1);
  d.operations().update_expert_bias(d.stream(), {bias, counts, step, 0.5});
  EXPECT_EQ(bias.values(), (std::vector<double>{0.5, 1, -0.5, 0}));
}

}  // namespace
}  // namespace weft
