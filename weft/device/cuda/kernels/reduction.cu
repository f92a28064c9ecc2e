// A thread adds up the numbers of four neighbours, one input after another.
#include <type_traits>

#include "weft/device/cuda/kernels/launch.cuh"
#include "weft/device/cuda/kernels/reduction.h"

namespace weft::cuda {

namespace {

constexpr int threads = 256, at_once = 4;

// As a parameter of the kernel, which is copied with every launch: small where it can be.
template <int capacity>
struct Inputs {
  const void* data[capacity];
  int count = 0;
};

// Sums of whole numbers are unsigned: they wrap. bf16 is added up in float.
template <class T, bool largest>
struct TotalOf {
  using type = std::conditional_t<largest, T, std::make_unsigned_t<T>>;
};
template <bool largest>
struct TotalOf<float, largest> {
  using type = float;
};
template <bool largest>
struct TotalOf<double, largest> {
  using type = double;
};
template <bool largest>
struct TotalOf<bf16, largest> {
  using type = float;
};

template <class Total, class T>
__device__ Total total_of(T x) {
  if constexpr (std::is_same_v<T, bf16>)
    return __bfloat162float(x);
  else
    return static_cast<Total>(x);
}
template <class T, class Total>
__device__ T stored(Total x) {
  if constexpr (std::is_same_v<T, bf16>)
    return __float2bfloat16_rn(x);
  else
    return static_cast<T>(x);
}

template <class T, bool largest, int capacity>
__global__ void __launch_bounds__(threads)
    reduce_kernel(const __grid_constant__ Inputs<capacity> inputs, T* out, std::int64_t count) {
  using Total = typename TotalOf<T, largest>::type;
  const std::int64_t first = (static_cast<std::int64_t>(blockIdx.x) * threads * at_once) + threadIdx.x;
  Total totals[at_once];
  for (int input = 0; input < inputs.count; ++input) {
    const T* x = static_cast<const T*>(inputs.data[input]);
#pragma unroll
    for (int n = 0; n < at_once; ++n) {
      const std::int64_t i = first + n * threads;
      if (i >= count) continue;
      const Total next = total_of<Total>(x[i]);
      if (input == 0)
        totals[n] = next;
      else if constexpr (largest)
        totals[n] = next > totals[n] || next != next ? next : totals[n];  // NaN wins
      else
        totals[n] = static_cast<Total>(totals[n] + next);
    }
  }
#pragma unroll
  for (int n = 0; n < at_once; ++n)
    if (const std::int64_t i = first + n * threads; i < count) out[i] = stored<T>(totals[n]);
}

template <class Body>
void with_any(DType dtype, const Body& body) {
  switch (dtype) {
    case DType::f32:
      return body(Type<float>{});
    case DType::f64:
      return body(Type<double>{});
    case DType::bf16:
      return body(Type<bf16>{});
    case DType::i16:
      return body(Type<std::int16_t>{});
    case DType::i32:
      return body(Type<std::int32_t>{});
    case DType::i64:
      return body(Type<std::int64_t>{});
    case DType::u8:
      return body(Type<std::uint8_t>{});
  }
  refuse("reduce", "has no such dtype");
}

template <int capacity>
void launch(CudaStream& stream, Reduction reduction, DType dtype, void* out, std::span<const std::byte* const> inputs,
            std::int64_t count) {
  require(!inputs.empty() && inputs.size() <= capacity, "reduce", "takes 1 to 2048 ranks");
  Inputs<capacity> list;
  for (const std::byte* input : inputs) list.data[list.count++] = input;
  const auto blocks = static_cast<unsigned>(divide_up(count, threads * at_once));
  with_any(dtype, [&](auto type) {
    using T = typename decltype(type)::type;
    if (reduction == Reduction::sum)
      reduce_kernel<T, false><<<blocks, threads, 0, stream.handle()>>>(list, static_cast<T*>(out), count);
    else
      reduce_kernel<T, true><<<blocks, threads, 0, stream.handle()>>>(list, static_cast<T*>(out), count);
  });
  launched("reduce");
}

}  // namespace

void reduce_in_order(CudaStream& stream, Reduction reduction, DType dtype, void* out,
                     std::span<const std::byte* const> inputs, std::int64_t count) {
  if (inputs.size() <= 16)
    launch<16>(stream, reduction, dtype, out, inputs, count);
  else
    launch<2048>(stream, reduction, dtype, out, inputs, count);
}

}  // namespace weft::cuda
