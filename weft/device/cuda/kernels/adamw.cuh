// AdamW's arithmetic, and the loop over a part of a slab that reads and writes global memory directly.
#pragma once

#include "weft/device/cuda/kernels/trained_weights.cuh"
#include "weft/device/operations/optimizer.h"

namespace weft::cuda {

struct SlabItem {
  void* weight;             // f32, or
  std::int16_t* remainder;  // bf16, with this
  float *m, *v;
  const void* gradient;
  std::int64_t count;
  int first;
  bool single_gradient, decays;
  bool packs;  // everything is aligned to 16 bytes
};

// The numbers of a step, as an update uses them: with u = decay / inverse1 and s = rate * inverse1,
//   w -= rate (decay w + inverse1 m / root) = s (u w + m / root).
struct StepConstants {
  float clip, beta1, rest1, beta2, rest2, root2, eps, rate, decay;

  __device__ static StepConstants of(const double* values, double beta1, double beta2, double eps) {
    const double correction1 = values[StepValues::correction1];
    return {static_cast<float>(values[StepValues::clip_factor]),
            static_cast<float>(beta1),
            static_cast<float>(1 - beta1),
            static_cast<float>(beta2),
            static_cast<float>(1 - beta2),
            static_cast<float>(sqrt(1 / values[StepValues::correction2])),
            static_cast<float>(eps),
            static_cast<float>(values[StepValues::learning_rate] / correction1),
            static_cast<float>(values[StepValues::weight_decay] * correction1)};
  }
  __device__ StepConstants with_decay(bool decays) const {
    StepConstants k = *this;
    if (!decays) k.decay = 0;
    return k;
  }
};

// Each within an ulp. Arguments below 2^-126 count as 0: next to eps their roots (below 1e-19) are nothing.
__device__ inline float quick_root(float x) {
  float root;
  asm("sqrt.approx.ftz.f32 %0, %1;" : "=f"(root) : "f"(x));
  return root;
}
__device__ inline float quick_inverse(float x) {
  float inverse;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(inverse) : "f"(x));
  return inverse;
}

// Twelve instructions, rounded as written whichever kernel they are compiled into: an update has the same bits on all
// processors and on a few. On a few instructions count, so root and quotient are the quick ones (their error is below
// 3 ulp of the direction, a small part of an ulp of the weight).
__device__ inline void update_one(const StepConstants& k, float g, float& first, float& second, float& value) {
  const float d = __fmul_rn(k.clip, g);
  first = __fmaf_rn(k.beta1, first, __fmul_rn(k.rest1, d));
  second = __fmaf_rn(__fmul_rn(k.rest2, d), d, __fmul_rn(k.beta2, second));
  const float root = __fmaf_rn(quick_root(second), k.root2, k.eps);
  const float direction = __fmaf_rn(k.decay, value, __fmul_rn(first, quick_inverse(root)));
  value = __fmaf_rn(-k.rate, direction, value);
}

// Elements [begin, end) of a slab by `threads`, V at once.
template <int V, class Values, class G>
__device__ void update(const StepConstants& k, const Values& values, float* m, float* v, const G* gradient,
                       std::int64_t begin, std::int64_t end, int thread, int threads) {
  for (std::int64_t i = begin + thread * V; i < end; i += threads * V) {
    float g[V], first[V], second[V], value[V];
    load<V>(gradient + i, g);
    load<V>(m + i, first);
    load<V>(v + i, second);
    values.get(i, value);
#pragma unroll
    for (int j = 0; j < V; ++j) update_one(k, g[j], first[j], second[j], value[j]);
    store<V>(m + i, first);
    store<V>(v + i, second);
    values.set(i, value);
  }
}

template <int V, class G>
__device__ void update_part_by(const StepConstants& k, const SlabItem& s, std::int64_t begin, std::int64_t end,
                               int thread, int threads) {
  const G* gradient = static_cast<const G*>(s.gradient);
  const auto with = [&](const auto& values) { update<V>(k, values, s.m, s.v, gradient, begin, end, thread, threads); };
  if (s.remainder == nullptr)
    with(Weights{static_cast<float*>(s.weight)});
  else
    with(SplitWeights{static_cast<bf16*>(s.weight), s.remainder});
}

// V: 4 where the part comes in packs, else 1.
template <int V>
__device__ void update_part(const StepConstants& k, const SlabItem& s, std::int64_t begin, std::int64_t end, int thread,
                            int threads) {
  s.single_gradient ? update_part_by<V, float>(k, s, begin, end, thread, threads)
                    : update_part_by<V, bf16>(k, s, begin, end, thread, threads);
}

}  // namespace weft::cuda
