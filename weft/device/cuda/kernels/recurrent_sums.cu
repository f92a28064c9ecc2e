#include "weft/device/cuda/kernels/recurrent_sums.cuh"

namespace weft::cuda {

namespace {

// A warp per head and gradient: lanes take chunks in turn, then their sums are added in order.
__global__ void chunk_sums_kernel(const float* sums, int chunks, int heads, HeadGradients gradients, bool add) {
  const int head = static_cast<int>(blockIdx.x);
  float* to = gradients.at[blockIdx.y];
  if (to == nullptr) return;
  double sum = 0;
  for (int c = static_cast<int>(threadIdx.x); c < chunks; c += 32)
    sum += static_cast<double>(
        sums[(static_cast<std::int64_t>(c) * gradients.count + static_cast<int>(blockIdx.y)) * heads + head]);
  sum = warp_sum(sum);
  if (threadIdx.x == 0) to[head] = static_cast<float>(add ? static_cast<double>(to[head]) + sum : sum);
}

}  // namespace

void add_chunk_sums(const char* name, CudaStream& stream, const float* sums, std::int64_t chunks, std::int64_t heads,
                    const HeadGradients& gradients, Store store) {
  const dim3 grid(static_cast<unsigned>(heads), static_cast<unsigned>(gradients.count));
  chunk_sums_kernel<<<grid, 32, 0, stream.handle()>>>(sums, static_cast<int>(chunks), static_cast<int>(heads),
                                                      gradients, store == Store::add);
  launched(name);
}

ChunkCut chunk_cut(const char* operation, std::int64_t tokens, std::int64_t length, std::int64_t chunk,
                   const Tensor& boundaries, std::int64_t heads) {
  if (length == 0) length = tokens;
  require(tokens < std::int64_t{1} << 31, operation, "more than 2 billion tokens");
  require(heads <= 65535 && tokens / length <= 65535, operation, "more than 65535 heads or sequences");
  chunk = std::min(chunk, length);
  return {static_cast<int>(tokens),          static_cast<int>(length),
          static_cast<int>(chunk),           static_cast<int>(divide_up(length, chunk)),
          static_cast<int>(tokens / length), optional<const std::int32_t>(boundaries)};
}

}  // namespace weft::cuda
