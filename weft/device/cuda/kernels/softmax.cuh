// What cross entropy does with a row of logits: sums of exponentials, gradients; and the sum of the rows' losses.
#pragma once

#include <cfloat>

#include "weft/device/cuda/kernels/launch.cuh"
#include "weft/device/cuda/kernels/quick.cuh"
#include "weft/device/cuda/kernels/reduce.cuh"

namespace weft::cuda {

namespace {

constexpr int threads = 512;  // of a block that works on a row

// e^x for x <= 0; its relative error is about (2 + |x|) 2^-23.
__device__ float quick_exp(float x) { return quick_exp2(1.4426950408889634f * x); }

__device__ double scalar(const void* data, bool single) {
  return single ? static_cast<double>(*static_cast<const float*>(data)) : *static_cast<const double*>(data);
}

// The largest value of a part of a row, and the sum of exp(value - largest).
struct Exponentials {
  double sum;
  float top;
};

// f(integral constant, c) for packs of V columns below `count`, `at_once` of them from c on, or one. Returns the columns
// that are left.
template <int V, int at_once, class F>
__device__ int over_packs(int count, const F& f) {
  constexpr int step = threads * V;
  const int whole = count / V * V;
  int c = static_cast<int>(threadIdx.x) * V;
  for (; c + (at_once - 1) * step < whole; c += at_once * step) f(std::integral_constant<int, at_once>{}, c);
  for (; c < whole; c += step) f(std::integral_constant<int, 1>{}, c);
  return whole;
}

// Of `count` logits, for all threads of the block. V: how many can be read at once, at least.
template <int V>
__device__ Exponentials sum_exponentials(const float* logits, int count) {
  constexpr int width = V >= 4 ? 4 : 1;
  float top = -FLT_MAX, sum = 0;
  const int whole = over_packs<width, 4>(count, [&](auto packs, int c) {
    float v[packs.value][width], high = top, part = 0;
#pragma unroll
    for (int p = 0; p < packs.value; ++p) load<width>(logits + c + p * threads * width, v[p]);
#pragma unroll
    for (int p = 0; p < packs.value; ++p)
#pragma unroll
      for (int i = 0; i < width; ++i) high = fmaxf(high, v[p][i]);
#pragma unroll
    for (int p = 0; p < packs.value; ++p)
#pragma unroll
      for (int i = 0; i < width; ++i) part += quick_exp(v[p][i] - high);
    sum = sum * quick_exp(top - high) + part;
    top = high;
  });
  for (int c = whole + static_cast<int>(threadIdx.x); c < count; c += threads) {
    const float x = logits[c], high = fmaxf(top, x);
    sum = sum * quick_exp(top - high) + quick_exp(x - high);
    top = high;
  }
  const float highest = block_max<threads>(top);
  return {block_sum<threads>(static_cast<double>(sum * quick_exp(top - highest))), highest};
}

// dlogits = exp(logits - highest) factor; at_label where the label is; 0 beyond `count`. What it reads and writes makes
// room in the L2 cache for rows that are yet to be read again.
template <int V, class D>
__device__ void write_gradients(const float* logits, D* dlogits, int count, int columns, float highest, float factor,
                                int label, float at_label) {
  const int whole = over_packs<V, 2>(count, [&](auto packs, int c) {
    Pack<float, V> words[packs.value];
#pragma unroll
    for (int p = 0; p < packs.value; ++p) words[p] = read_once<V>(logits + c + p * threads * V);
#pragma unroll
    for (int p = 0; p < packs.value; ++p) {
      const int at = c + p * threads * V;
      float v[V];
#pragma unroll
      for (int i = 0; i < V; ++i) v[i] = quick_exp(words[p].at[i] - highest) * factor;
      if (label >= at && label < at + V) {
#pragma unroll
        for (int i = 0; i < V; ++i)
          if (at + i == label) v[i] = at_label;
      }
      store_once<V>(dlogits + at, v);
    }
  });
  for (int c = whole + static_cast<int>(threadIdx.x); c < columns; c += threads)
    dlogits[c] = narrow<D>(c >= count ? 0.0f : c == label ? at_label : quick_exp(logits[c] - highest) * factor);
}

__global__ void add_losses(const double* losses, std::int64_t rows, const void* scale, bool single_scale, float* loss,
                           bool add) {
  double sum = 0;
  for (std::int64_t r = threadIdx.x; r < rows; r += 1024) sum += losses[r];
  sum = block_sum<1024>(sum);
  if (threadIdx.x == 0)
    *loss = static_cast<float>(scalar(scale, single_scale) * sum + (add ? static_cast<double>(*loss) : 0.0));
}

}  // namespace

}  // namespace weft::cuda
