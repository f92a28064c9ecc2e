// router and its backward: a token at a time.
#include <array>
#include <cmath>
#include <limits>

#include "weft/device/cpu/kernels/dispatch.h"

namespace weft::WEFT_ISA {

namespace {

constexpr std::int64_t most = 256;  // choices of a token, and groups of experts

// The k best of a sequence, best first; of equal ones the earlier. NaN counts as the worst value.
template <class Acc>
class Best {
 public:
  explicit Best(std::int64_t k) : k_(k) {
    for (std::int64_t i = 0; i < k; ++i) {
      values_[at(i)] = 0;
      indices_[at(i)] = 0;
    }
  }
  void offer(Acc value, std::int64_t index) {
    value = value != value ? -std::numeric_limits<Acc>::infinity() : value;
    if (count_ == k_ && !(value > values_[at(k_ - 1)])) return;
    std::int64_t place = count_ < k_ ? count_++ : k_ - 1;
    for (; place > 0 && value > values_[at(place - 1)]; --place) {
      values_[at(place)] = values_[at(place - 1)];
      indices_[at(place)] = indices_[at(place - 1)];
    }
    values_[at(place)] = value;
    indices_[at(place)] = index;
  }
  std::int64_t count() const { return count_; }
  std::int64_t index(std::int64_t place) const { return indices_[at(place)]; }
  Acc sum() const {
    Acc sum = 0;
    for (std::int64_t i = 0; i < count_; ++i) sum += values_[at(i)];
    return sum;
  }

 private:
  static std::size_t at(std::int64_t i) { return static_cast<std::size_t>(i); }
  std::int64_t k_, count_ = 0;
  std::array<Acc, most> values_;
  std::array<std::int64_t, most> indices_;
};

// Offers every expert whose group takes part. choice(e): the value that experts are chosen by.
template <class Acc, class Choice>
void choose(const RouterSpec& spec, std::int64_t experts, const Choice& choice, Best<Acc>& chosen) {
  if (spec.groups <= 1) {
    for (std::int64_t e = 0; e < experts; ++e) chosen.offer(choice(e), e);
    return;
  }
  const std::int64_t size = experts / spec.groups;
  Best<Acc> groups(spec.keep_groups);
  for (std::int64_t g = 0; g < spec.groups; ++g) {
    Best<Acc> members(spec.group_best);
    for (std::int64_t e = g * size; e < (g + 1) * size; ++e) members.offer(choice(e), e);
    groups.offer(members.sum(), g);
  }
  std::array<bool, most> kept{};
  for (std::int64_t i = 0; i < groups.count(); ++i) kept[static_cast<std::size_t>(groups.index(i))] = true;
  for (std::int64_t g = 0; g < spec.groups; ++g)  // in the order of experts: ties go to the lower index
    if (kept[static_cast<std::size_t>(g)])
      for (std::int64_t e = g * size; e < (g + 1) * size; ++e) chosen.offer(choice(e), e);
}

template <class Acc>
void softmax(const Acc* logits, Acc* scores, std::int64_t count) {
  Acc highest = -std::numeric_limits<Acc>::infinity(), sum = 0;
#pragma omp simd reduction(max : highest)
  for (std::int64_t e = 0; e < count; ++e) highest = logits[e] > highest ? logits[e] : highest;
#pragma omp simd reduction(+ : sum)
  for (std::int64_t e = 0; e < count; ++e) {
    scores[e] = fast_exp(logits[e] - highest);
    sum += scores[e];
  }
  const Acc inverse = Acc{1} / sum;
#pragma omp simd
  for (std::int64_t e = 0; e < count; ++e) scores[e] *= inverse;
}

template <class Acc>
void route(const Router& op, std::int64_t t, std::int64_t experts) {
  const RouterSpec& spec = op.spec;
  const std::int64_t k = spec.k;
  const Acc *logits = row<Acc>(op.logits, t), *bias = optional<Acc>(op.bias);
  Acc *scores = row<Acc>(op.scores, t), *weights = row<Acc>(op.weights, t);
  std::int32_t* indices = row<std::int32_t>(op.indices, t);
  const bool sigmoid = spec.score == RouterSpec::Score::sigmoid, choose_first = !sigmoid && spec.choose_first;
  Best<Acc> chosen(k);
  if (sigmoid) {
#pragma omp simd
    for (std::int64_t e = 0; e < experts; ++e) scores[e] = fast_sigmoid(logits[e]);
  } else {
    softmax(logits, scores, experts);
  }
  if (choose_first)
    choose(
        spec, experts, [&](std::int64_t e) { return logits[e]; }, chosen);
  else if (bias != nullptr)
    choose(
        spec, experts, [&](std::int64_t e) { return scores[e] + bias[e]; }, chosen);
  else
    choose(
        spec, experts, [&](std::int64_t e) { return scores[e]; }, chosen);

  Acc sum = 0;
  for (std::int64_t i = 0; i < k; ++i) {
    const std::int64_t e = chosen.index(i);
    indices[i] = static_cast<std::int32_t>(e);
    weights[i] = choose_first ? fast_exp(logits[e] - logits[chosen.index(0)]) : scores[e];
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

  std::array<Acc, most> p;  // of the chosen: what multiplies q in `mean`
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

void check(const char* operation, const RouterSpec& spec, std::int64_t experts) {
  require(spec.k >= 1 && spec.k <= experts && spec.k <= most, operation, "k is not between 1 and the experts (or 256)");
  if (spec.groups <= 1) return;
  require(spec.groups <= most && experts % spec.groups == 0, operation, "the experts do not divide into the groups");
  require(
      spec.keep_groups >= 1 && spec.keep_groups <= spec.groups && spec.k <= spec.keep_groups * (experts / spec.groups),
      operation, "the kept groups hold fewer than k experts");
  require(spec.group_best >= 1 && spec.group_best <= experts / spec.groups && spec.group_best <= most, operation,
          "group_best is not between 1 and a group's experts");
}

}  // namespace

void router(Stream& stream, const Router& op) {
  const std::int64_t tokens = op.logits.rows();
  if (tokens == 0) return;
  const std::int64_t experts = columns_of(op.logits);
  check("router", op.spec, experts);
  require(same_size(op.logits, op.scores) && op.scores.dtype == op.logits.dtype, "router",
          "logits and scores differ in shape or dtype");
  require(op.weights.rows() == tokens && columns_of(op.weights) == op.spec.k && op.weights.dtype == op.logits.dtype,
          "router", "the weights are not [T, k] like the logits");
  require(same_size(op.weights, op.indices) && op.indices.dtype == DType::i32, "router",
          "the indices are not i32 [T, k]");
  require(!op.bias.given() || (op.spec.score == RouterSpec::Score::sigmoid && op.bias.dtype == op.logits.dtype &&
                               op.bias.shape.elements() == experts),
          "router", "the bias is not acc [E], or the scores are not sigmoids");
  with_accumulator("router", op.logits.dtype, [&](auto type) {
    using Acc = typename decltype(type)::type;
    split_rows(stream, tokens, experts * 4, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t t = begin; t < end; ++t) route<Acc>(op, t, experts);
    });
  });
}

void router_backward(Stream& stream, const RouterBackward& op) {
  const std::int64_t tokens = op.scores.rows();
  if (tokens == 0) return;
  const std::int64_t experts = columns_of(op.scores);
  check("router_backward", op.spec, experts);
  require(same_size(op.scores, op.dlogits) && op.scores.dtype == op.dlogits.dtype, "router_backward",
          "scores and dlogits differ in shape or dtype");
  require(op.weights.rows() == tokens && columns_of(op.weights) == op.spec.k && same_size(op.weights, op.dweights) &&
              same_size(op.weights, op.indices),
          "router_backward", "weights, dweights and indices are not [T, k]");
  require(op.weights.dtype == op.scores.dtype && op.dweights.dtype == op.scores.dtype && op.indices.dtype == DType::i32,
          "router_backward", "its tensors' dtypes do not go together");
  with_accumulator("router_backward", op.scores.dtype, [&](auto type) {
    using Acc = typename decltype(type)::type;
    split_rows(stream, tokens, experts, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t t = begin; t < end; ++t) route_backward<Acc>(op, t, experts);
    });
  });
}

}  // namespace weft::WEFT_ISA
