// Typed access to tensors inside kernels: bf16 is widened to float when read and rounded to nearest even when written.
#pragma once

#include <cstdint>

#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include "weft/device/tensor.h"

namespace weft::cuda {

using bf16 = __nv_bfloat16;

__device__ inline float widen(float x) { return x; }
__device__ inline float widen(bf16 x) { return __bfloat162float(x); }

template <class T>
__device__ inline T narrow(float x);
template <>
__device__ inline float narrow<float>(float x) {
  return x;
}
template <>
__device__ inline bf16 narrow<bf16>(float x) {
  return __float2bfloat16_rn(x);
}

// V elements that are read and written at once.
template <class T, int V>
struct alignas(sizeof(T) * V) Pack {
  T at[V];
};

// Element i of a pack. A pair of bf16 is one register, of which each half is a float's upper half.
template <int V, class T>
__device__ inline float widen(const Pack<T, V>& pack, int i) {
  if constexpr (sizeof(T) == 2 && V % 2 == 0) {
    const unsigned pair = reinterpret_cast<const unsigned*>(&pack)[i / 2];
    return __uint_as_float(i % 2 == 0 ? pair << 16 : pair & 0xffff0000u);
  } else {
    return widen(pack.at[i]);
  }
}
template <int V, class T>
__device__ inline Pack<T, V> narrowed(const float (&x)[V]) {
  Pack<T, V> pack;
  if constexpr (sizeof(T) == 2 && V % 2 == 0) {
#pragma unroll
    for (int i = 0; i < V; i += 2)
      reinterpret_cast<__nv_bfloat162*>(&pack)[i / 2] = __floats2bfloat162_rn(x[i], x[i + 1]);
  } else {
#pragma unroll
    for (int i = 0; i < V; ++i) pack.at[i] = narrow<T>(x[i]);
  }
  return pack;
}

template <int V, class T>
__device__ inline void load(const T* from, float (&x)[V]) {
  const Pack<T, V> pack = *reinterpret_cast<const Pack<T, V>*>(from);
#pragma unroll
  for (int i = 0; i < V; ++i) x[i] = widen(pack, i);
}

template <int V, class T>
__device__ inline void store(T* to, const float (&x)[V]) {
  *reinterpret_cast<Pack<T, V>*>(to) = narrowed<V, T>(x);
}

// The same for elements that are not read again soon: they leave room in the caches.
template <int V, class T>
__device__ inline Pack<T, V> read_once(const T* from) {
  Pack<T, V> pack;
  if constexpr (sizeof(pack) % 16 != 0) {
    pack = *reinterpret_cast<const Pack<T, V>*>(from);
  } else {
#pragma unroll
    for (int i = 0; i < static_cast<int>(sizeof(pack) / 16); ++i)
      reinterpret_cast<uint4*>(&pack)[i] = __ldcs(reinterpret_cast<const uint4*>(from) + i);
  }
  return pack;
}
template <int V, class T>
__device__ inline void store_once(T* to, const float (&x)[V]) {
  const Pack<T, V> pack = narrowed<V, T>(x);
  if constexpr (sizeof(pack) % 16 != 0) {
    *reinterpret_cast<Pack<T, V>*>(to) = pack;
  } else {
#pragma unroll
    for (int i = 0; i < static_cast<int>(sizeof(pack) / 16); ++i)
      __stcs(reinterpret_cast<uint4*>(to) + i, reinterpret_cast<const uint4*>(&pack)[i]);
  }
}

// Rows of a tensor, as kernels take it.
template <class T>
struct Rows {
  T* data = nullptr;
  std::int64_t stride = 0;
  __device__ T* operator[](std::int64_t row) const { return data + row * stride; }
};
template <class T>
Rows<T> rows_of(const Tensor& tensor) {
  return {static_cast<T*>(tensor.data), tensor.stride};
}

// The number of rows in use: all, or the number in device memory.
__device__ inline std::int64_t used_rows(const std::int32_t* in_use, std::int64_t rows) {
  if (in_use == nullptr) return rows;
  return *in_use < rows ? *in_use : rows;
}

}  // namespace weft::cuda
