// Keeping experts equally busy: counts, losses of the router, capacity, the bias of the choice. The contracts that hold
// for every operation: weft/device/operations.h.
#pragma once

#include <cstdint>

#include "weft/device/operations/router.h"
#include "weft/device/operations/store.h"
#include "weft/device/tensor.h"

namespace weft {

// counts [sequences, E] (f32 or f64) (+)= (before [like counts] +) how often each expert is chosen by the tokens of each
// of `sequences` equal parts. Chosen: indices i32 [T, k], those that are not negative; or, without indices, the k
// largest of scores acc [T, E] (ties: lower index).
struct CountExperts {
  Tensor indices, scores, counts, before;
  std::int64_t k = 1, sequences = 1;
  Store store = Store::write;
};

// kept i32 [T, k] = indices, or -1 where the expert has more than `capacity` slots and this one is not among those it
// keeps: the ones of largest weight (ties: earlier tokens), or the earliest tokens.
struct DropChoices {
  enum class Policy : std::uint8_t { probabilities, position } policy = Policy::probabilities;
  Tensor indices, weights, kept;
  std::int64_t experts = 1, capacity = 0;
};

// Losses of a router, from scores [T, E] (acc) and logits [T, E] (acc; only for z). With p the scores, for sigmoid
// divided by (their sum + 1e-20), s the token's sequence of `sequences` equal ones, and n = counts f64 [sequences, E]:
//   balance = 1/T sum_t sum_e p_te E n_se / sum_j n_sj        z = 1/T sum_t (log sum_e exp(logits_te))^2
//   dlogits [T, E] += scale[0] * (balance_coefficient * d(balance) + z_coefficient * d(z))     (n is a constant)
//   balance_loss, z_loss: f64 [1] (+)= scale[0] * the loss, without its coefficient; absent where there is none
// scale: f64 [1].
struct BalanceLosses {
  RouterSpec::Score score = RouterSpec::Score::softmax;
  Tensor scores, logits, counts, scale, dlogits, balance_loss, z_loss;
  std::int64_t sequences = 1;
  double balance_coefficient = 0, z_coefficient = 0;
  Store store = Store::write;  // of the losses
};

// bias [E] (f32 or f64) += rate * sign(mean(counts) - counts), counts f64 [E]: experts that were chosen too seldom rise.
// Does nothing when step_values[finite] is 0.
struct UpdateExpertBias {
  Tensor bias, counts, step_values;
  double rate = 0;
};

}  // namespace weft
