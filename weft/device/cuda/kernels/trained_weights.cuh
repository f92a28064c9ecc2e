// The weights of an update, V at once.
#pragma once

#include "weft/device/cuda/kernels/split_float.cuh"

namespace weft::cuda {

// What is updated: weights as they are, or floats of which each is a bf16 weight and a remainder.
struct Weights {
  float* weight;
  template <int V>
  __device__ void get(std::int64_t i, float (&x)[V]) const {
    load<V>(weight + i, x);
  }
  template <int V>
  __device__ void set(std::int64_t i, const float (&x)[V]) const {
    store<V>(weight + i, x);
  }
};
struct SplitWeights {
  bf16* weight;
  std::int16_t* remainder;
  template <int V>
  __device__ void get(std::int64_t i, float (&x)[V]) const {
    load_split<V>(weight + i, remainder + i, x);
  }
  template <int V>
  __device__ void set(std::int64_t i, const float (&x)[V]) const {
    store_split<V>(weight + i, remainder + i, x);
  }
};

}  // namespace weft::cuda
