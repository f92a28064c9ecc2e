#include "weft/device/cuda/kernels/fingerprint.h"
#include "weft/device/cuda/kernels/launch.cuh"
#include "weft/device/cuda/kernels/reduce.cuh"

namespace weft::cuda {

namespace {

using Number = unsigned long long;

__device__ Number mix(Number x) {
  x ^= x >> 31;
  x *= 0x7fb5d329728ea185ull;
  x ^= x >> 27;
  x *= 0x81dadef4bc2dd44dull;
  return x ^ (x >> 33);
}

// Sums of integers: their order does not matter.
template <class Word>
__global__ void mix_words(Rows<const Word> x, std::int64_t rows, std::int64_t columns, Number* to) {
  Number hash = 0, set = 0;
  for (std::int64_t r = blockIdx.x; r < rows; r += gridDim.x)
    for (std::int64_t c = threadIdx.x; c < columns; c += blockDim.x) {
      const Number word = x[r][c];
      hash += mix(static_cast<Number>(r * columns + c) * 0x9e3779b97f4a7c15ull + word);
      set += word != 0;
    }
  hash = warp_sum(hash);
  set = warp_sum(set);
  if (threadIdx.x % 32 != 0) return;
  atomicAdd(to, hash);
  atomicAdd(to + 1, set);
}

}  // namespace

void queue_fingerprint(CudaStream& stream, const Tensor& x, Fingerprint* to) {
  constexpr const char* name = "fingerprint";
  const std::int64_t rows = x.rows(), columns = columns_of(x);
  check_cuda(cudaMemsetAsync(to, 0, sizeof(Fingerprint), stream.handle()), name);
  const auto blocks = static_cast<unsigned>(std::min<std::int64_t>(rows, 4096));
  auto* sums = reinterpret_cast<Number*>(to);
  if (size_of(x.dtype) == 2)
    mix_words<<<blocks, 256, 0, stream.handle()>>>(rows_of<const std::uint16_t>(x), rows, columns, sums);
  else
    mix_words<<<blocks, 256, 0, stream.handle()>>>(rows_of<const std::uint32_t>(x), rows, columns, sums);
  launched(name);
}

}  // namespace weft::cuda
