// Queries and keys of multi-latent attention. The contracts that hold for every operation: weft/device/operations.h.
#pragma once

#include <cstdint>

#include "weft/device/operations/attention.h"
#include "weft/device/tensor.h"

namespace weft {

// A head has `still` elements followed by `turning` ones, which rotary embedding turns by their position's angles.
//   q [T, heads * (still + turning)]  turns in place
//   k [T, heads * (still + turning)]  is made: k_h = [own_h | turned shared], own [T, heads * still], shared [T, turning]
// Rows may be strided. cosine, sine: acc [positions, turning / 2]. positions: i32 [T]; absent: token index mod length.
struct LatentHeads {
  Tensor q, own, shared, k, cosine, sine, positions;
  std::int64_t heads = 1, still = 0, turning = 0, length = 0;
  RotaryStyle style = RotaryStyle::interleaved;
};
// The gradients: dq turns back in place; down_h = the still part of dk_h; dshared = turned back, the sum over heads (in
// their order) of the turning parts of dk. down and dshared are written.
struct LatentHeadsBackward {
  Tensor dq, dk, down, dshared, cosine, sine, positions;
  std::int64_t heads = 1, still = 0, turning = 0, length = 0;
  RotaryStyle style = RotaryStyle::interleaved;
};

}  // namespace weft
