// Attention by cuDNN, where it is there. A plan for a shape is made when the shape is met first, and kept.
#pragma once

#include <memory>
#include <string>

#include "weft/device/cuda/stream.h"
#include "weft/device/operations/attention.h"

namespace weft::cuda {

class FusedAttention {
 public:
  virtual ~FusedAttention() = default;
  // False: cuDNN has nothing for this shape, or it is left to kernels of our own (f32, sinks, documents).
  virtual bool forward(CudaStream& stream, const Attention& op) = 0;
  virtual bool backward(CudaStream& stream, const AttentionBackward& op) = 0;
};

// lse [heads, T] -> [batch, heads, length].
void pack_statistics(CudaStream& stream, const Tensor& lse, std::int64_t length, float* packed);

// Null where cuDNN is not built in or does not load.
std::unique_ptr<FusedAttention> make_fused_attention();
// "9.14.0", or why there is none.
std::string cudnn_version();

}  // namespace weft::cuda
