// Learning rate and weight decay as functions of the consumed samples, as in Megatron.
//
// The clock n is the number of samples that all earlier steps consumed: iteration i (from 1) with a constant global
// batch B runs at n = (i - 1) B. So with warm-up the first step runs at exactly warmup_init (0 by default: it fills the
// moments and changes no weight), the rate reaches `lr` at n = warmup, and a run as long as `decay` ends one step short
// of min_lr.
//
//   n <= warmup, warmup > 0   warmup_init + (lr - warmup_init) n / warmup
//   constant                  lr
//   n > decay                 min_lr
//   inverse_square_root       max(min_lr, lr sqrt(max(warmup, 1)) / sqrt(max(n, 1)))
//   otherwise                 min_lr + (lr - min_lr) c,     r = (n - warmup) / (decay - warmup)
//     linear  c = 1 - r       cosine  c = (1 + cos(pi r)) / 2
//     wsd     c = 1 up to n = decay - wsd, then with s = (n - (decay - wsd)) / wsd
//             linear 1 - s    cosine (1 + cos(pi s)) / 2    exponential 2 * 0.5^s - 1    minus_sqrt 1 - sqrt(s)
#pragma once

#include <cstdint>

namespace weft {

enum class DecayStyle : std::uint8_t { constant, linear, cosine, inverse_square_root, wsd };
enum class WsdStyle : std::uint8_t { exponential, linear, cosine, minus_sqrt };
enum class WeightDecayStyle : std::uint8_t { constant, linear, cosine };

// Lengths are in samples. They are real numbers because a warm-up may be a fraction of the decay.
struct LearningRateSpec {
  double lr = 0, min_lr = 0, warmup_init = 0;
  DecayStyle style = DecayStyle::linear;
  double warmup = 0, decay = 0;
  WsdStyle wsd_style = WsdStyle::exponential;
  double wsd = 0;  // length of the last part of `decay`
};

struct WeightDecaySpec {
  double start = 0, end = 0;
  WeightDecayStyle style = WeightDecayStyle::constant;  // constant: `end`
  double length = 0;                                    // samples from start to end
};

// consumed: samples of all earlier steps, at least 0.
double learning_rate(const LearningRateSpec& spec, std::int64_t consumed);
double weight_decay(const WeightDecaySpec& spec, std::int64_t consumed);

}  // namespace weft
