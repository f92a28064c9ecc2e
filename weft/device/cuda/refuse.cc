#include "weft/device/cuda/refuse.h"

#include <cuda_runtime.h>

#include "weft/base/error.h"

namespace weft::cuda {

void refuse(const char* operation, const char* why) { throw BugError(fmt::format("{}: {}", operation, why)); }

void check_cuda(int code, const char* what) {
  if (code == cudaSuccess) return;
  const auto error = static_cast<cudaError_t>(code);
  throw RunError("{}: CUDA says {} ({})", what, cudaGetErrorString(error), cudaGetErrorName(error));
}

}  // namespace weft::cuda
