// lse [heads, T], as operations keep it, in the order that cuDNN's backward needs: [batch, heads, length].
#include "weft/device/cuda/fused_attention.h"
#include "weft/device/cuda/kernels/launch.cuh"

namespace weft::cuda {

namespace {

struct PackRow {
  const float* lse;
  float* packed;
  int heads, length;
  std::int64_t stride;
  __device__ void operator()(std::int64_t row, std::int64_t t) const {
    const int b = static_cast<int>(row) / heads, head = static_cast<int>(row) % heads;
    packed[row * length + t] = lse[head * stride + static_cast<std::int64_t>(b) * length + t];
  }
};

}  // namespace

void pack_statistics(CudaStream& stream, const Tensor& lse, std::int64_t length, float* packed) {
  const std::int64_t heads = lse.rows(), batch = lse.columns() / length;
  launch_over_rows("attention_backward", stream,
                   PackRow{lse.as<float>(), packed, static_cast<int>(heads), static_cast<int>(length), lse.stride},
                   batch * heads, length);
}

}  // namespace weft::cuda
