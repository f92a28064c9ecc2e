// From an operation's arguments to a kernel: which types, how many elements at once, how many blocks.
#pragma once

#include <algorithm>
#include <initializer_list>
#include <type_traits>

#include "weft/device/cuda/check.h"
#include "weft/device/cuda/kernels/values.cuh"
#include "weft/device/cuda/stream.h"

namespace weft::cuda {

// A type as a value: body(Type<T>{}) and `typename decltype(t)::type` inside.
template <class T>
struct Type {
  using type = T;
};

// body(T) for the storage types f32 and bf16.
template <class Body>
void with_storage(const char* operation, DType dtype, const Body& body) {
  switch (dtype) {
    case DType::f32:
      return body(Type<float>{});
    case DType::bf16:
      return body(Type<bf16>{});
    default:
      refuse(operation, "needs f32 or bf16 on a GPU");
  }
}

// body(T, U) where `second` is stored like `first` or in f32: weights and gradients next to activations.
template <class Body>
void with_storage_and(const char* operation, DType first, DType second, const Body& body) {
  with_storage(operation, first, [&](auto type) {
    if (second == first) return body(type, type);
    if (second != DType::f32) refuse(operation, "its tensors' dtypes do not go together");
    if constexpr (!std::is_same_v<typename decltype(type)::type, float>) body(type, Type<float>{});
  });
}

template <class T>
T* optional(const Tensor& tensor) {
  return tensor.given() ? static_cast<T*>(tensor.data) : nullptr;
}

inline std::int64_t columns_of(const Tensor& tensor) {
  return tensor.rows() > 0 ? tensor.shape.elements() / tensor.rows() : 0;
}

inline const std::int32_t* in_use_of(const char* operation, const Tensor& rows_in_use) {
  require(!rows_in_use.given() || rows_in_use.dtype == DType::i32, operation, "rows_in_use is not i32");
  return optional<const std::int32_t>(rows_in_use);
}

inline std::int64_t divide_up(std::int64_t x, std::int64_t by) { return (x + by - 1) / by; }

// After a launch.
inline void launched(const char* operation) { check_cuda(cudaGetLastError(), operation); }

// A kernel with `bytes` of dynamic shared memory, which may be more than the 48 KiB that every kernel has.
template <class Kernel, class... Arguments>
void launch_shared(const char* operation, CudaStream& stream, Kernel kernel, dim3 grid, int threads, int bytes,
                   const Arguments&... arguments) {
  check_cuda(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes), operation);
  kernel<<<grid, static_cast<unsigned>(threads), static_cast<std::size_t>(bytes), stream.handle()>>>(arguments...);
  launched(operation);
}

// Whether rows of `columns` elements can be read eight at a time in every tensor given (absent ones do not matter; one
// dim is one row).
constexpr int pack = 8;
inline bool packs(std::int64_t columns, std::initializer_list<const Tensor*> tensors) {
  if (columns % pack != 0) return false;
  for (const Tensor* tensor : tensors) {
    if (!tensor->given()) continue;
    const auto bytes = static_cast<std::int64_t>(size_of(tensor->dtype)) * pack;
    if (reinterpret_cast<std::intptr_t>(tensor->data) % bytes != 0) return false;
    if (tensor->shape.dims() > 1 && tensor->rows() > 1 && tensor->stride % pack != 0) return false;
  }
  return true;
}

// body(integral constant V) with 8 or 1 elements at once.
template <class Body>
void with_pack(std::int64_t columns, std::initializer_list<const Tensor*> tensors, const Body& body) {
  if (packs(columns, tensors))
    body(std::integral_constant<int, pack>{});
  else
    body(std::integral_constant<int, 1>{});
}

// f(row, unit) for every row below rows (and below *in_use) and every unit below units.
template <class F>
__global__ void over_rows(F f, std::int64_t rows, std::int64_t units, const std::int32_t* in_use) {
  const std::int64_t end = used_rows(in_use, rows);
  for (std::int64_t r = blockIdx.y * static_cast<std::int64_t>(blockDim.y) + threadIdx.y; r < end;
       r += static_cast<std::int64_t>(gridDim.y) * blockDim.y)
    for (std::int64_t u = blockIdx.x * static_cast<std::int64_t>(blockDim.x) + threadIdx.x; u < units;
         u += static_cast<std::int64_t>(gridDim.x) * blockDim.x)
      f(r, u);
}

template <class F>
void launch_over_rows(const char* operation, CudaStream& stream, const F& f, std::int64_t rows, std::int64_t units,
                      const std::int32_t* in_use = nullptr) {
  if (rows == 0 || units == 0) return;
  unsigned wide = 1;
  while (wide < 256 && wide < units) wide *= 2;
  // Narrower, down to a warp, where fewer threads are without a unit then.
  for (unsigned less = wide / 2; less >= 32; less /= 2)
    if (divide_up(units, less) * less < divide_up(units, wide) * wide) wide = less;
  const dim3 block(wide, 256 / wide);
  const dim3 grid(static_cast<unsigned>(std::min<std::int64_t>(divide_up(units, block.x), 1 << 20)),
                  static_cast<unsigned>(std::min<std::int64_t>(divide_up(rows, block.y), 32768)));
  over_rows<<<grid, block, 0, stream.handle()>>>(f, rows, units, in_use);
  launched(operation);
}

// Shape of an elementwise loop: one long row where all tensors are contiguous.
struct Extent {
  std::int64_t rows, columns;
};
inline Extent extent_of(std::initializer_list<const Tensor*> tensors) {
  const Tensor& first = **tensors.begin();
  bool flat = true;
  for (const Tensor* tensor : tensors) flat = flat && (!tensor->given() || tensor->contiguous());
  if (flat) return {1, first.shape.elements()};
  return {first.rows(), columns_of(first)};
}

}  // namespace weft::cuda
