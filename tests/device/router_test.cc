#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include <fmt/format.h>

#include "tests/device/everywhere.h"
#include "weft/base/error.h"
#include "weft/device/operations.h"

namespace weft {
namespace {

using Score = RouterSpec::Score;

struct Mode {
  const char* name;
  RouterSpec spec;
  bool biased = false;
};
const Mode modes[] = {
    {"choose first", {Score::softmax, true, false, 1, 4}},
    {"choose first, scaled", {Score::softmax, true, false, 2.5, 1}},
    {"choose first, groups", {Score::softmax, true, false, 1, 4, 4, 2, 2}},
    {"softmax", {Score::softmax, false, false, 1, 4}},
    {"softmax, normalised", {Score::softmax, false, true, 1.5, 3}},
    {"softmax, groups", {Score::softmax, false, false, 1, 4, 8, 3, 1}},
    {"sigmoid", {Score::sigmoid, false, false, 1, 4}, true},
    {"sigmoid, normalised", {Score::sigmoid, false, true, 2.5, 5}},
    {"sigmoid, groups", {Score::sigmoid, false, true, 2.5, 4, 4, 2, 2}, true},
    {"all experts", {Score::sigmoid, false, true, 1, 24}},
};

// A stable sort by value keeps the lower index of equal ones first.
std::vector<std::int64_t> best(const std::vector<double>& values, std::vector<std::int64_t> candidates,
                               std::int64_t k) {
  std::stable_sort(candidates.begin(), candidates.end(), [&](std::int64_t a, std::int64_t b) {
    return values[static_cast<std::size_t>(a)] > values[static_cast<std::size_t>(b)];
  });
  candidates.resize(static_cast<std::size_t>(k));
  return candidates;
}
std::vector<std::int64_t> range(std::int64_t first, std::int64_t count) {
  std::vector<std::int64_t> all(static_cast<std::size_t>(count));
  std::iota(all.begin(), all.end(), first);
  return all;
}

struct Routed {
  std::vector<double> scores, weights;
  std::vector<std::int64_t> indices;
};
Routed reference(const RouterSpec& spec, const std::vector<double>& logits, const std::vector<double>& bias) {
  const auto experts = static_cast<std::int64_t>(logits.size());
  const auto at = [](const std::vector<double>& values, std::int64_t i) { return values[static_cast<std::size_t>(i)]; };
  Routed result;
  const double highest = *std::max_element(logits.begin(), logits.end());
  double sum = 0;
  for (double logit : logits) {
    result.scores.push_back(spec.score == Score::sigmoid ? 1 / (1 + std::exp(-logit)) : std::exp(logit - highest));
    sum += result.scores.back();
  }
  if (spec.score == Score::softmax)
    for (double& score : result.scores) score /= sum;
  const bool choose_first = spec.score == Score::softmax && spec.choose_first;
  std::vector<double> choice = choose_first ? logits : result.scores;
  for (std::size_t e = 0; e < bias.size(); ++e) choice[e] += bias[e];
  std::vector<std::int64_t> candidates = range(0, experts);
  if (spec.groups > 1) {
    const std::int64_t size = experts / spec.groups;
    std::vector<double> group_scores;
    for (std::int64_t g = 0; g < spec.groups; ++g) {
      double score = 0;
      for (std::int64_t e : best(choice, range(g * size, size), spec.group_best)) score += at(choice, e);
      group_scores.push_back(score);
    }
    std::vector<std::int64_t> groups = best(group_scores, range(0, spec.groups), spec.keep_groups);
    std::sort(groups.begin(), groups.end());
    candidates.clear();
    for (std::int64_t g : groups)
      for (std::int64_t e : range(g * size, size)) candidates.push_back(e);
  }
  result.indices = best(choice, candidates, spec.k);
  double total = 0;
  for (std::int64_t e : result.indices) {
    result.weights.push_back(choose_first ? std::exp(at(logits, e) - highest) : at(result.scores, e));
    total += result.weights.back();
  }
  if (choose_first || spec.normalise)
    for (double& weight : result.weights) weight /= total;
  for (double& weight : result.weights) weight *= spec.scaling;
  return result;
}

constexpr std::int64_t experts = 24;

TEST(Router, ChoosesAndWeighsAsTheSpecSays) {
  for (const Mode& mode : modes)
    for (DType dtype : {DType::f32, DType::f64})
      for (std::int64_t tokens : {1, 900}) {
        SCOPED_TRACE(fmt::format("{} {} {} tokens", mode.name, name_of(dtype), tokens));
        const std::int64_t k = mode.spec.k;
        const HostTensor logits = HostTensor::normal(dtype, Shape{tokens, experts}, "logits", 2, experts + 3);
        const HostTensor bias = mode.biased ? HostTensor::normal(dtype, Shape{experts}, "bias", 0.3) : HostTensor();
        std::vector<double> scores, weights, indices;
        for (std::int64_t t = 0; t < tokens; ++t) {
          std::vector<double> row;
          for (std::int64_t e = 0; e < experts; ++e) row.push_back(logits.at(t, e));
          const Routed want = reference(mode.spec, row, mode.biased ? bias.values() : std::vector<double>{});
          scores.insert(scores.end(), want.scores.begin(), want.scores.end());
          weights.insert(weights.end(), want.weights.begin(), want.weights.end());
          indices.insert(indices.end(), want.indices.begin(), want.indices.end());
        }
        everywhere(
            [&](TestDevice& device) {
              HostTensor got_scores(dtype, Shape{tokens, experts}), got_weights(dtype, Shape{tokens, k});
              HostTensor got_indices(DType::i32, Shape{tokens, k});
              device.operations().router(device.stream(),
                                         {mode.spec, logits, bias, got_scores, got_weights, got_indices});
              return std::vector<HostTensor>{got_scores, got_weights, got_indices};
            },
            [&](const std::vector<HostTensor>& got) {
              // exp of a difference of logits up to 16 is good to 16 + 2 roundings, a sum of them no worse
              expect_close(got[0], scores, experts + 24, scores);
              expect_close(got[1], weights, experts + 24, weights);
              EXPECT_EQ(got[2].values(), indices);
            });
      }
}

TEST(Router, TiesGoToTheLowerIndex) {
  for_each_device([&](TestDevice& device) {
    for (const Mode& mode : modes) {
      SCOPED_TRACE(mode.name);
      const std::int64_t k = mode.spec.k;
      HostTensor logits(DType::f32, Shape{1, experts}), scores = logits, weights(DType::f32, Shape{1, k});
      HostTensor indices(DType::i32, Shape{1, k});
      device.operations().router(device.stream(), {mode.spec, logits, {}, scores, weights, indices});
      for (std::int64_t i = 0; i < k; ++i) EXPECT_EQ(indices.at(i), static_cast<double>(i));
      if (k < 3 || mode.spec.groups > 1) continue;
      logits.set(7, 1), logits.set(20, 1), logits.set(9, 2);
      device.operations().router(device.stream(), {mode.spec, logits, {}, scores, weights, indices});
      EXPECT_EQ(indices.at(0), 9);
      EXPECT_EQ(indices.at(1), 7);
      EXPECT_EQ(indices.at(2), 20);
      if (k > 3) {
        EXPECT_EQ(indices.at(3), 0);
      }
    }
  });
}

// A broken token must not break the memory of others: its experts are k different ones, its weights are NaN.
TEST(Router, NotANumberStillChoosesExperts) {
  const double nan = std::numeric_limits<double>::quiet_NaN(), infinity = std::numeric_limits<double>::infinity();
  for_each_device([&](TestDevice& device) {
    for (const Mode& mode : modes)
      for (double value : {nan, infinity, -infinity}) {
        SCOPED_TRACE(fmt::format("{} {}", mode.name, value));
        const std::int64_t k = mode.spec.k;
        HostTensor logits(DType::f32, Shape{1, experts}), scores = logits, weights(DType::f32, Shape{1, k});
        HostTensor indices(DType::i32, Shape{1, k});
        logits.fill(value);
        device.operations().router(device.stream(), {mode.spec, logits, {}, scores, weights, indices});
        std::vector<double> sorted = indices.values();
        std::sort(sorted.begin(), sorted.end());
        EXPECT_GE(sorted.front(), 0);
        EXPECT_LT(sorted.back(), experts);
        EXPECT_EQ(std::adjacent_find(sorted.begin(), sorted.end()), sorted.end());
        if (std::isnan(value)) {
          EXPECT_TRUE(std::isnan(weights.at(0)));
        }
      }
  });
}

TEST(Router, GradientsAgreeWithDifferences) {
  TestDevice device;
  const Operations& ops = device.operations();
  for (const Mode& mode : modes) {
    SCOPED_TRACE(mode.name);
    const std::int64_t tokens = 5, k = mode.spec.k;
    HostTensor logits(DType::f64, Shape{tokens, experts});  // far enough apart that no difference changes the choice
    for (std::int64_t i = 0; i < tokens * experts; ++i) {
      const auto place = static_cast<double>((i % experts * 7 + i / experts * 5) % experts);
      logits.set(i, 0.1 * place + 0.006 * place * place - 2);
    }
    const HostTensor bias = mode.biased ? HostTensor::normal(DType::f64, Shape{experts}, "bias", 0.3) : HostTensor();
    const HostTensor dweights = HostTensor::normal(DType::f64, Shape{tokens, k}, "dweights");
    HostTensor scores = logits, dlogits = logits, weights = dweights, indices(DType::i32, Shape{tokens, k});
    HostTensor chosen;
    const auto loss = [&] {
      ops.router(device.stream(), {mode.spec, logits, bias, scores, weights, indices});
      EXPECT_TRUE(chosen.elements() == 0 || chosen.same_bits(indices)) << "a tie: the choice moved";
      return weighted_sum(weights, dweights);
    };
    loss();
    chosen = indices;
    ops.router_backward(device.stream(), {mode.spec, scores, weights, indices, dweights, dlogits});
    const HostTensor saved_scores = scores, saved_weights = weights;
    check_gradient(loss, logits, dlogits.values(), 1e-6, tokens * experts);
    HostTensor added = HostTensor::normal(DType::f64, Shape{tokens, experts}, "old");
    const HostTensor old = added;
    ops.router_backward(device.stream(),
                        {mode.spec, saved_scores, saved_weights, indices, dweights, added, Store::add});
    for (std::int64_t i = 0; i < added.elements(); ++i) EXPECT_NEAR(added.at(i), old.at(i) + dlogits.at(i), 1e-14) << i;
  }
}

TEST(Router, BackwardInFloatIsTheDoubleOne) {
  for (const Mode& mode : modes) {
    SCOPED_TRACE(mode.name);
    const std::int64_t tokens = 1500, k = mode.spec.k;
    const HostTensor logits = HostTensor::normal(DType::f64, Shape{tokens, experts}, "logits", 1.5);
    const HostTensor dweights = HostTensor::normal(DType::f32, Shape{tokens, k}, "dweights");
    HostTensor scores = logits, weights(DType::f64, Shape{tokens, k}), indices(DType::i32, Shape{tokens, k});
    HostTensor exact = logits, bounds = logits;
    TestDevice device;
    device.operations().router(device.stream(), {mode.spec, logits, {}, scores, weights, indices});
    const HostTensor scores32 = HostTensor::of(DType::f32, Shape{tokens, experts}, scores.values());
    const HostTensor weights32 = HostTensor::of(DType::f32, Shape{tokens, k}, weights.values());
    const HostTensor dweights64 = HostTensor::of(DType::f64, Shape{tokens, k}, dweights.values());
    device.operations().router_backward(device.stream(), {mode.spec, scores, weights, indices, dweights64, exact});
    std::vector<double> magnitudes(static_cast<std::size_t>(tokens * experts));
    for (std::int64_t t = 0; t < tokens; ++t) {  // |dlogit| <= scaling * 2 max |dweight| (weights add up to scaling)
      double largest = 0;
      for (std::int64_t i = 0; i < k; ++i) largest = std::max(largest, std::abs(dweights.at(t, i)));
      std::fill_n(magnitudes.begin() + t * experts, experts, 2 * mode.spec.scaling * largest);
    }
    everywhere(
        [&](TestDevice& other) {
          HostTensor dlogits(DType::f32, Shape{tokens, experts});
          other.operations().router_backward(other.stream(),
                                             {mode.spec, scores32, weights32, indices, dweights, dlogits});
          return std::vector<HostTensor>{dlogits};
        },
        [&](const std::vector<HostTensor>& got) { expect_close(got[0], exact.values(), k + 8, magnitudes); });
  }
}

TEST(Router, RefusesSpecsThatCannotBe) {
  TestDevice device;
  const auto message = [&](RouterSpec spec, const Tensor& bias) -> std::string {
    const HostTensor logits(DType::f32, Shape{2, experts}), weights(DType::f32, Shape{2, spec.k});
    const HostTensor indices(DType::i32, Shape{2, spec.k});
    try {
      device.operations().router(device.stream(), {spec, logits, bias, logits, weights, indices});
    } catch (const BugError& error) {
      return error.what();
    }
    return "";
  };
  EXPECT_EQ(message({Score::softmax, true, false, 1, 25}, {}), "router: k is not between 1 and the experts (or 256)");
  EXPECT_EQ(message({Score::sigmoid, false, false, 1, 8, 4, 1, 2}, {}),
            "router: the kept groups hold fewer than k experts");
  EXPECT_EQ(message({Score::sigmoid, false, false, 1, 2, 5, 1, 2}, {}),
            "router: the experts do not divide into the groups");
  EXPECT_EQ(message({Score::softmax, true, false, 1, 2}, HostTensor(DType::f32, Shape{experts})),
            "router: the bias is not acc [E], or the scores are not sigmoids");
}

}  // namespace
}  // namespace weft
