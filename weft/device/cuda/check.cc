#include "weft/device/cuda/check.h"

#include <cuda_runtime.h>

#include "weft/base/error.h"

namespace weft::cuda {

void check_cuda(int code, const char* what) {
  if (code == cudaSuccess) return;
  cudaGetLastError();  // or a kernel launched later would be blamed for it
  const auto error = static_cast<cudaError_t>(code);
  throw RunError("{}: CUDA reports {} ({})", what, cudaGetErrorString(error), cudaGetErrorName(error));
}

}  // namespace weft::cuda
