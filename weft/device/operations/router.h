// The router: which experts a token goes to, and with what weight. The contracts that hold for every operation: weft/device/operations.h.
#pragma once

#include <cstdint>

#include "weft/device/operations/store.h"
#include "weft/device/tensor.h"

namespace weft {

// Chooses k of E experts for every token. All tensors acc (or i32): logits [T, E], scores [T, E], weights [T, k],
// indices i32 [T, k] in the order of choice (best first; ties: lower index).
//   softmax, choose_first    choice by logits; weight = softmax over the k chosen
//   softmax, otherwise       scores = softmax over all; choice by scores; weight = score (/ sum of the k, if normalise)
//   sigmoid                  scores = sigmoid; choice by score + bias [E]; weight = score (/ (sum + 1e-20), if
//   normalise)
// then weight *= scaling. groups > 1: a group's score is the sum of its group_best best choices' scores; only the
// keep_groups best groups take part.
struct RouterSpec {
  enum class Score : std::uint8_t { softmax, sigmoid } score = Score::softmax;
  bool choose_first = true, normalise = false;
  double scaling = 1;
  std::int64_t k = 1, groups = 1, keep_groups = 1, group_best = 2;
};
struct Router {
  RouterSpec spec;
  Tensor logits, bias, scores, weights, indices;  // scores: softmax over all, or sigmoid: what backward and losses need
};
// dlogits [T, E] (+)= gradient, from dweights [T, k].
struct RouterBackward {
  RouterSpec spec;
  Tensor scores, weights, indices, dweights, dlogits;
  Store store = Store::write;
};

}  // namespace weft
