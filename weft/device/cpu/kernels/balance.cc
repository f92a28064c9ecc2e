// count_experts, drop_choices, balance_losses, update_expert_bias.
#include "weft/device/operations/balance.h"

#include <algorithm>
#include <cmath>

#include "weft/device/argument_checks.h"
#include "weft/device/cpu/kernels/dispatch.h"
#include "weft/device/operations/optimizer.h"

namespace weft::WEFT_ISA {

namespace {

// The k largest of scores[0 .. E), lower index first among equals; body(index) for each. taken: [E].
template <class Acc, class Body>
void each_best(const Acc* scores, std::int64_t experts, std::int64_t k, char* taken, const Body& body) {
  std::fill(taken, taken + experts, char{0});
  for (std::int64_t place = 0; place < k; ++place) {
    std::int64_t best = -1;
    for (std::int64_t e = 0; e < experts; ++e)
      if (taken[e] == 0 && (best < 0 || scores[e] > scores[best])) best = e;
    taken[best] = 1;
    body(best);
  }
}

template <class Count>
void count(const CountExperts& op, std::int64_t tokens, std::int64_t experts) {
  constexpr const char* name = "count_experts";
  Count* counts = op.counts.as<Count>();
  const std::int64_t all = op.sequences * experts;
  const Count* before = optional<Count>(op.before);
  for (std::int64_t i = 0; i < all; ++i)
    counts[i] = (op.store == Store::add ? counts[i] : Count{0}) + (before != nullptr ? before[i] : Count{0});
  const std::int64_t length = tokens / op.sequences;
  if (op.indices.given()) {
    const std::int32_t* indices = op.indices.as<std::int32_t>();
    for (std::int64_t t = 0; t < tokens; ++t)
      for (std::int64_t j = 0; j < op.k; ++j) {
        const std::int32_t expert = indices[t * op.k + j];
        require(expert < experts, name, "an index beyond the experts");
        if (expert >= 0) counts[t / length * experts + expert] += 1;
      }
    return;
  }
  auto* taken = static_cast<char*>(thread_scratch(static_cast<std::size_t>(experts)));
  with_accumulator(name, op.scores.dtype, [&](auto type) {
    using Acc = typename decltype(type)::type;
    for (std::int64_t t = 0; t < tokens; ++t)
      each_best(row<Acc>(op.scores, t), experts, op.k, taken,
                [&](std::int64_t e) { counts[t / length * experts + e] += 1; });
  });
}

// One token's part of the balance loss, with gradient: p [E], g [E] = d loss / d p.
template <class Acc>
Acc balance_row(RouterSpec::Score score, const Acc* scores, const Acc* g, std::int64_t experts, Acc scale,
                Acc* dlogits) {
  Acc sum = 0, dot = 0;
  for (std::int64_t e = 0; e < experts; ++e) {
    sum += scores[e];
    dot += scores[e] * g[e];
  }
  if (score == RouterSpec::Score::softmax) {
    for (std::int64_t e = 0; e < experts; ++e) dlogits[e] += scale * scores[e] * (g[e] - dot);
    return dot;
  }
  const Acc inverse = Acc{1} / (sum + static_cast<Acc>(1e-20)), mean = dot * inverse;
  for (std::int64_t e = 0; e < experts; ++e)
    dlogits[e] += scale * (g[e] - mean) * inverse * scores[e] * (Acc{1} - scores[e]);
  return mean;
}

template <class Acc>
Acc z_row(const Acc* logits, std::int64_t experts, Acc scale, Acc* dlogits) {
  Acc top = logits[0], sum = 0;
  for (std::int64_t e = 1; e < experts; ++e) top = std::max(top, logits[e]);
  for (std::int64_t e = 0; e < experts; ++e) sum += std::exp(logits[e] - top);
  const Acc z = top + std::log(sum);
  for (std::int64_t e = 0; e < experts; ++e) dlogits[e] += scale * 2 * z * std::exp(logits[e] - top) / sum;
  return z * z;
}

// losses f64 [T], one per token, into out f64 [1].
void add_up(const double* losses, std::int64_t tokens, double factor, const Tensor& out, Store store) {
  if (!out.given()) return;
  double sum = 0;
  for (std::int64_t t = 0; t < tokens; ++t) sum += losses[t];
  double& to = *out.as<double>();
  to = (store == Store::add ? to : 0) + factor * sum;
}

template <class Acc>
void losses(Stream& stream, const BalanceLosses& op) {
  const std::int64_t tokens = op.scores.rows(), experts = columns_of(op.scores), length = tokens / op.sequences;
  const double scale = *op.scale.as<double>(),
               per_token = scale / static_cast<double>(std::max<std::int64_t>(tokens, 1));
  const bool balances = op.counts.given(), z = op.z_coefficient != 0;
  const std::size_t pressures = balances ? static_cast<std::size_t>(op.sequences * experts) : 0;
  auto* scratch = static_cast<double*>(thread_scratch((2 * static_cast<std::size_t>(tokens) + pressures) * 8));
  double *balance_losses = scratch, *z_losses = scratch + tokens;
  auto* pressure = reinterpret_cast<Acc*>(scratch + 2 * tokens);  // [sequences, E]: E n / sum of n
  for (std::int64_t s = 0; balances && s < op.sequences; ++s) {
    const double* n = op.counts.as<double>() + s * experts;
    double sum = 0;
    for (std::int64_t e = 0; e < experts; ++e) sum += n[e];
    for (std::int64_t e = 0; e < experts; ++e)
      pressure[s * experts + e] = static_cast<Acc>(sum > 0 ? static_cast<double>(experts) * n[e] / sum : 0);
  }
  split_rows(stream, tokens, 4 * experts, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t t = begin; t < end; ++t) {
      Acc* dlogits = row<Acc>(op.dlogits, t);
      if (balances)
        balance_losses[t] = balance_row(op.score, row<Acc>(op.scores, t), pressure + t / length * experts, experts,
                                        static_cast<Acc>(per_token * op.balance_coefficient), dlogits);
      if (z)
        z_losses[t] = z_row(row<Acc>(op.logits, t), experts, static_cast<Acc>(per_token * op.z_coefficient), dlogits);
    }
  });
  if (balances) add_up(balance_losses, tokens, per_token, op.balance_loss, op.store);
  if (z) add_up(z_losses, tokens, per_token, op.z_loss, op.store);
}

}  // namespace

void count_experts(Stream&, const CountExperts& op) {
  constexpr const char* name = "count_experts";
  check_arguments(name, op);
  const std::int64_t tokens = op.indices.given() ? op.indices.shape.elements() / op.k : op.scores.rows();
  const std::int64_t experts = op.counts.shape.elements() / op.sequences;
  with_accumulator(name, op.counts.dtype,
                   [&](auto type) { count<typename decltype(type)::type>(op, tokens, experts); });
}

void drop_choices(Stream&, const DropChoices& op) {
  constexpr const char* name = "drop_choices";
  check_arguments(name, op);
  const std::int64_t slots = op.indices.shape.elements(), experts = op.experts;
  const std::int32_t* indices = op.indices.as<std::int32_t>();
  std::int32_t* kept = op.kept.as<std::int32_t>();
  // Slots sorted by expert, stably; then what is beyond the capacity goes.
  auto* scratch = static_cast<std::int32_t*>(thread_scratch(static_cast<std::size_t>(slots + experts + 1) * 4));
  std::int32_t *end_of = scratch, *sorted = scratch + experts + 1;
  std::fill(end_of, end_of + experts + 1, 0);
  for (std::int64_t s = 0; s < slots; ++s) {
    require(indices[s] < experts, name, "an index beyond the experts");
    kept[s] = indices[s];
    if (indices[s] >= 0) ++end_of[indices[s] + 1];
  }
  for (std::int64_t e = 0; e < experts; ++e) end_of[e + 1] += end_of[e];
  for (std::int64_t s = 0; s < slots; ++s)
    if (indices[s] >= 0) sorted[end_of[indices[s]]++] = static_cast<std::int32_t>(s);
  with_accumulator(name, op.weights.dtype, [&](auto type) {
    using Acc = typename decltype(type)::type;
    const Acc* weights = op.weights.as<Acc>();
    std::int32_t begin = 0;
    for (std::int64_t e = 0; e < experts; begin = end_of[e++]) {
      if (end_of[e] - begin <= op.capacity) continue;
      std::int32_t* beyond = sorted + begin + op.capacity;
      if (op.policy == DropChoices::Policy::probabilities)
        std::nth_element(sorted + begin, beyond, sorted + end_of[e], [&](std::int32_t a, std::int32_t b) {
          return weights[a] != weights[b] ? weights[a] > weights[b] : a < b;
        });
      for (; beyond < sorted + end_of[e]; ++beyond) kept[*beyond] = -1;
    }
  });
}

void balance_losses(Stream& stream, const BalanceLosses& op) {
  constexpr const char* name = "balance_losses";
  check_arguments(name, op);
  with_accumulator(name, op.scores.dtype, [&](auto type) { losses<typename decltype(type)::type>(stream, op); });
}

void update_expert_bias(Stream&, const UpdateExpertBias& op) {
  constexpr const char* name = "update_expert_bias";
  const std::int64_t experts = op.bias.shape.elements();
  check_arguments(name, op);
  if (op.step_values.as<double>()[StepValues::finite] == 0) return;
  const double* counts = op.counts.as<double>();
  double sum = 0;
  for (std::int64_t e = 0; e < experts; ++e) sum += counts[e];
  const double mean = sum / static_cast<double>(experts);
  with_accumulator(name, op.bias.dtype, [&](auto type) {
    using Acc = typename decltype(type)::type;
    Acc* bias = op.bias.as<Acc>();
    for (std::int64_t e = 0; e < experts; ++e)
      bias[e] += static_cast<Acc>(op.rate) * static_cast<Acc>((mean > counts[e]) - (mean < counts[e]));
  });
}

}  // namespace weft::WEFT_ISA
