// Whether two results agree in every bit, without keeping both.
#pragma once

#include <cstdint>

#include "weft/device/cuda/stream.h"
#include "weft/device/tensor.h"

namespace weft::cuda {

struct Fingerprint {
  std::uint64_t hash = 0, set = 0;  // set: elements that are not zero
};
// Of a tensor of 2-byte or 4-byte elements, into device memory.
void queue_fingerprint(CudaStream& stream, const Tensor& x, Fingerprint* to);

}  // namespace weft::cuda
