// What must hold on the host before and after a call of CUDA.
#pragma once

#include "weft/device/refuse.h"

namespace weft::cuda {

inline void require(bool condition, const char* operation, const char* why) {
  if (!condition) refuse(operation, why);
}

// RunError naming `what` unless a call of CUDA succeeded. code: a cudaError_t.
void check_cuda(int code, const char* what);

}  // namespace weft::cuda
