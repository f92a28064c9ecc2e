// Floats kept as a bf16 weight and a remainder of 16 bits (split_float in weft/base/dtype.h), V at once.
#pragma once

#include "weft/device/cuda/kernels/values.cuh"

namespace weft::cuda {

template <int V>
__device__ inline void load_split(const bf16* weight, const std::int16_t* remainder, float (&x)[V]) {
  const Pack<bf16, V> upper = *reinterpret_cast<const Pack<bf16, V>*>(weight);
  const Pack<std::int16_t, V> lower = *reinterpret_cast<const Pack<std::int16_t, V>*>(remainder);
#pragma unroll
  for (int i = 0; i < V; ++i) x[i] = __int_as_float(__float_as_int(widen(upper, i)) + lower.at[i]);
}

// x is the result of arithmetic, whose NaN is 0x7fffffff: rounded like a number it would turn into zero.
template <int V>
__device__ inline void store_split(bf16* weight, std::int16_t* remainder, const float (&x)[V]) {
  Pack<bf16, V> upper;
  Pack<std::int16_t, V> lower;
  int bits[V];
#pragma unroll
  for (int i = 0; i < V; ++i) bits[i] = min(__float_as_int(x[i]), 0x7fc00000);
  if constexpr (V % 2 == 0) {
#pragma unroll
    for (int i = 0; i < V; i += 2) {
      const auto a = static_cast<unsigned>(bits[i]), b = static_cast<unsigned>(bits[i + 1]);
      reinterpret_cast<unsigned*>(&upper)[i / 2] = __byte_perm(a + 0x8000u, b + 0x8000u, 0x7632);
      reinterpret_cast<unsigned*>(&lower)[i / 2] = __byte_perm(a, b, 0x5410);
    }
  } else {
#pragma unroll
    for (int i = 0; i < V; ++i) {
      upper.at[i] = __ushort_as_bfloat16(static_cast<unsigned short>((static_cast<unsigned>(bits[i]) + 0x8000u) >> 16));
      lower.at[i] = static_cast<std::int16_t>(bits[i] & 0xffff);
    }
  }
  *reinterpret_cast<Pack<bf16, V>*>(weight) = upper;
  *reinterpret_cast<Pack<std::int16_t, V>*>(remainder) = lower;
}

}  // namespace weft::cuda
