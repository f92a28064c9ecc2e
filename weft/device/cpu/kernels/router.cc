// router and its backward: a token at a time.
#include "weft/device/operations/router.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <type_traits>

#include "weft/device/argument_checks.h"
#include "weft/device/cpu/kernels/dispatch.h"
#include "weft/device/cpu/kernels/lane_sum.h"

namespace weft::WEFT_ISA {

namespace {

// Where the largest of values[0 .. count) is; of equal ones the first. NaN takes no part; at least one value is not NaN.
template <class Acc>
std::int64_t largest(const Acc* values, std::int64_t count) {
  using Index = std::conditional_t<sizeof(Acc) == 4, std::int32_t, std::int64_t>;  // as wide as a value
  constexpr int width = 16;
  Acc best[width];
  Index at[width];
  for (int lane = 0; lane < width; ++lane) {
    best[lane] = -std::numeric_limits<Acc>::infinity();
    at[lane] = std::numeric_limits<Index>::max();
  }
  std::int64_t i = 0;
  for (; i + width <= count; i += width) {
#pragma omp simd
    for (int lane = 0; lane < width; ++lane) {
      const Acc value = values[i + lane];
      at[lane] = value > best[lane] ? static_cast<Index>(i) + lane : at[lane];
      best[lane] = value > best[lane] ? value : best[lane];
    }
  }
  for (int lane = 0; i < count; ++i, ++lane)
    if (values[i] > best[lane]) {
      best[lane] = values[i];
      at[lane] = static_cast<Index>(i);
    }
#pragma GCC unroll 4
  for (int half = width / 2; half > 0; half /= 2) {
#pragma omp simd
    for (int lane = 0; lane < half; ++lane) {
      const Acc a = best[lane], b = best[lane + half];
      const Index from_a = at[lane], from_b = at[lane + half];
      const Index first = from_b < from_a ? from_b : from_a;
      best[lane] = b > a ? b : a;
      at[lane] = b > a ? from_b : b == a ? first : from_a;
    }
  }
  if (at[0] != std::numeric_limits<Index>::max()) return at[0];
  std::int64_t first = 0;  // nothing above -infinity
  while (first < count - 1 && values[first] != values[first]) ++first;
  return first;
}

// The k best of values[0 .. count), best first; of equal ones the lower index. A value that was taken, or that takes no
// part, is NaN. take(place, index, value).
template <class Acc, class Take>
void take_best(Acc* values, std::int64_t count, std::int64_t k, const Take& take) {
  for (std::int64_t place = 0; place < k; ++place) {
    const std::int64_t index = largest(values, count);
    take(place, index, values[index]);
    values[index] = std::numeric_limits<Acc>::quiet_NaN();
  }
}

// What choosing needs in addition to the choices [E]: the scores of groups, and a copy of one group's choices.
template <class Acc>
struct Choices {
  Acc *values, *groups, *members;
  static std::size_t bytes(std::int64_t experts) { return 3 * static_cast<std::size_t>(experts) * sizeof(Acc); }
  Choices(void* scratch, std::int64_t experts)
      : values(static_cast<Acc*>(scratch)), groups(values + experts), members(groups + experts) {}
};

// Takes the experts outside of the best groups out of the choice.
template <class Acc>
void keep_best_groups(const RouterSpec& spec, std::int64_t experts, const Choices<Acc>& choices) {
  const std::int64_t size = experts / spec.groups;
  for (std::int64_t g = 0; g < spec.groups; ++g) {
    std::copy_n(choices.values + g * size, size, choices.members);
    Acc sum = 0;
    take_best(choices.members, size, spec.group_best, [&](std::int64_t, std::int64_t, Acc value) { sum += value; });
    choices.groups[g] = sum != sum ? -std::numeric_limits<Acc>::infinity() : sum;
  }
  // The kept groups become NaN, so the others are those that are not.
  take_best(choices.groups, spec.groups, spec.keep_groups, [](std::int64_t, std::int64_t, Acc) {});
  for (std::int64_t e = 0; e < experts; ++e)
    if (choices.groups[e / size] == choices.groups[e / size]) choices.values[e] = std::numeric_limits<Acc>::quiet_NaN();
}

template <class Acc>
void softmax(const Acc* logits, Acc* scores, std::int64_t count) {
  Acc highest = -std::numeric_limits<Acc>::infinity();
#pragma omp simd reduction(max : highest)
  for (std::int64_t e = 0; e < count; ++e) highest = logits[e] > highest ? logits[e] : highest;
  const Acc sum = lane_sum<Acc>(
      count, [=](std::int64_t e) __attribute__((always_inline)) { return scores[e] = fast_exp(logits[e] - highest); });
  const Acc inverse = Acc{1} / sum;
#pragma omp simd
  for (std::int64_t e = 0; e < count; ++e) scores[e] *= inverse;
}

template <class Acc>
void route(const Router& op, std::int64_t t, std::int64_t experts, const Choices<Acc>& choices) {
  const RouterSpec& spec = op.spec;
  const std::int64_t k = spec.k;
  const Acc *logits = row<Acc>(op.logits, t), *bias = optional<Acc>(op.bias);
  Acc *scores = row<Acc>(op.scores, t), *weights = row<Acc>(op.weights, t);
  std::int32_t* indices = row<std::int32_t>(op.indices, t);
  const bool sigmoid = spec.score == RouterSpec::Score::sigmoid, choose_first = !sigmoid && spec.choose_first;
  if (sigmoid) {
#pragma omp simd
    for (std::int64_t e = 0; e < experts; ++e) scores[e] = fast_sigmoid(logits[e]);
  } else {
    softmax(logits, scores, experts);
  }
  // A token whose logits are not numbers still gets k experts.
  const Acc worst = -std::numeric_limits<Acc>::infinity();
  for (std::int64_t e = 0; e < experts; ++e) {
    const Acc choice = choose_first ? logits[e] : bias != nullptr ? scores[e] + bias[e] : scores[e];
    choices.values[e] = choice != choice ? worst : choice;
  }
  if (spec.groups > 1) keep_best_groups(spec, experts, choices);
  take_best(choices.values, experts, k,
            [&](std::int64_t place, std::int64_t e, Acc) { indices[place] = static_cast<std::int32_t>(e); });

  Acc sum = 0;
  for (std::int64_t i = 0; i < k; ++i) {
    const std::int64_t e = indices[i];
    weights[i] = choose_first ? fast_exp(logits[e] - logits[indices[0]]) : scores[e];
    sum += weights[i];
  }
  Acc factor = static_cast<Acc>(spec.scaling);
  if (choose_first || spec.normalise) factor /= sum + (sigmoid ? static_cast<Acc>(1e-20) : Acc{0});
  for (std::int64_t i = 0; i < k; ++i) weights[i] *= factor;
}

// With p the chosen scores over their sum (choose_first: the softmax over the chosen), q = dweight * scaling:
//   softmax, normalised or choose_first   dlogit_i = p_i (q_i - sum_j p_j q_j) for the chosen, else 0
//   softmax                               dlogit_e = s_e (q_e - sum_j s_j q_j) for all, q = 0 where not chosen
//   sigmoid                               ds_i = q_i, or (q_i - sum_j p_j q_j) / (sum + 1e-20); dlogit = s (1 - s) ds
// An index of -1 takes no part.
template <class Acc>
void route_backward(const RouterBackward& op, std::int64_t t, std::int64_t experts) {
  const RouterSpec& spec = op.spec;
  const Acc scaling = static_cast<Acc>(spec.scaling);
  const Acc *scores = row<Acc>(op.scores, t), *weights = row<Acc>(op.weights, t);
  const Acc* dweights = row<Acc>(op.dweights, t);
  const std::int32_t* indices = row<std::int32_t>(op.indices, t);
  Acc* dlogits = row<Acc>(op.dlogits, t);
  const bool sigmoid = spec.score == RouterSpec::Score::sigmoid, choose_first = !sigmoid && spec.choose_first;
  const bool normalised = choose_first || spec.normalise;

  std::array<Acc, most_choices> p;  // of the chosen: what multiplies q in `mean`
  Acc sum = 0, mean = 0;
  for (std::int64_t i = 0; i < spec.k; ++i) {
    require(indices[i] < experts, "router_backward", "an index beyond the experts");
    p[static_cast<std::size_t>(i)] = indices[i] < 0                 ? Acc{0}
                                     : choose_first && scaling != 0 ? weights[i] / scaling
                                                                    : scores[indices[i]];
    sum += p[static_cast<std::size_t>(i)];
  }
  if (sigmoid) sum += static_cast<Acc>(1e-20);
  const bool divide = normalised && !choose_first;
  for (std::int64_t i = 0; i < spec.k; ++i) {
    if (divide) p[static_cast<std::size_t>(i)] /= sum;
    mean += p[static_cast<std::size_t>(i)] * dweights[i] * scaling;
  }
  const bool spreads = !sigmoid && !normalised;  // every logit moves the chosen scores
  if (spreads && op.store == Store::add) {
    for (std::int64_t e = 0; e < experts; ++e) dlogits[e] -= scores[e] * mean;
  } else if (spreads) {
    for (std::int64_t e = 0; e < experts; ++e) dlogits[e] = -scores[e] * mean;
  } else if (op.store == Store::write) {
    for (std::int64_t e = 0; e < experts; ++e) dlogits[e] = 0;
  }
  for (std::int64_t i = 0; i < spec.k; ++i) {
    if (indices[i] < 0) continue;
    const Acc q = dweights[i] * scaling, s = scores[indices[i]];
    Acc& dlogit = dlogits[indices[i]];
    if (spreads)
      dlogit += s * q;
    else if (sigmoid)
      dlogit += s * (Acc{1} - s) * (normalised ? (q - mean) / sum : q);
    else
      dlogit += p[static_cast<std::size_t>(i)] * (q - mean);
  }
}

}  // namespace

void router(Stream& stream, const Router& op) {
  const std::int64_t tokens = op.logits.rows();
  if (tokens == 0) return;
  const std::int64_t experts = columns_of(op.logits);
  check_arguments("router", op);
  with_accumulator("router", op.logits.dtype, [&](auto type) {
    using Acc = typename decltype(type)::type;
    split_rows(stream, tokens, experts * 4, [&](std::int64_t begin, std::int64_t end) {
      const Choices<Acc> choices(thread_scratch(Choices<Acc>::bytes(experts)), experts);
      for (std::int64_t t = begin; t < end; ++t) route<Acc>(op, t, experts, choices);
    });
  });
}

void router_backward(Stream& stream, const RouterBackward& op) {
  const std::int64_t tokens = op.scores.rows();
  if (tokens == 0) return;
  const std::int64_t experts = columns_of(op.scores);
  check_arguments("router_backward", op);
  with_accumulator("router_backward", op.scores.dtype, [&](auto type) {
    using Acc = typename decltype(type)::type;
    split_rows(stream, tokens, experts, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t t = begin; t < end; ++t) route_backward<Acc>(op, t, experts);
    });
  });
}

}  // namespace weft::WEFT_ISA
