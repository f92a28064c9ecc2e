#include "weft/optim/schedule.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace weft {
namespace {

double falling_cosine(double ratio) { return 0.5 * (1.0 + std::cos(std::numbers::pi * ratio)); }

double anneal(WsdStyle style, double ratio) {
  switch (style) {
    case WsdStyle::exponential:
      return 2.0 * std::pow(0.5, ratio) - 1.0;
    case WsdStyle::linear:
      return 1.0 - ratio;
    case WsdStyle::cosine:
      return falling_cosine(ratio);
    case WsdStyle::minus_sqrt:
      return 1.0 - std::sqrt(ratio);
  }
  return 0;
}

// Share of lr - min_lr that is left, for n in (warmup, decay].
double share_left(const LearningRateSpec& spec, double n) {
  if (spec.style == DecayStyle::wsd) {
    const double begin = spec.decay - spec.wsd;
    return n <= begin ? 1.0 : anneal(spec.wsd_style, (n - begin) / spec.wsd);
  }
  const double ratio = (n - spec.warmup) / (spec.decay - spec.warmup);
  return spec.style == DecayStyle::linear ? 1.0 - ratio : falling_cosine(ratio);
}

}  // namespace

double learning_rate(const LearningRateSpec& spec, std::int64_t consumed) {
  const auto n = static_cast<double>(consumed);
  if (spec.warmup > 0 && n <= spec.warmup) return spec.warmup_init + (spec.lr - spec.warmup_init) * n / spec.warmup;
  if (spec.style == DecayStyle::constant) return spec.lr;
  if (n > spec.decay) return spec.min_lr;
  if (spec.style == DecayStyle::inverse_square_root)
    return std::max(spec.min_lr, spec.lr * std::sqrt(std::max(spec.warmup, 1.0)) / std::sqrt(std::max(n, 1.0)));
  return spec.min_lr + (spec.lr - spec.min_lr) * share_left(spec, n);
}

double weight_decay(const WeightDecaySpec& spec, std::int64_t consumed) {
  const auto n = static_cast<double>(consumed);
  if (spec.style == WeightDecayStyle::constant || n > spec.length || spec.length <= 0) return spec.end;
  const double ratio = n / spec.length;
  const double share = spec.style == WeightDecayStyle::linear ? ratio : falling_cosine(1.0 - ratio);
  return spec.start + (spec.end - spec.start) * share;
}

}  // namespace weft
