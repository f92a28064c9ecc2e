// How an operation says no; kept apart from the rest so that nvcc need not read the formatting library.
#pragma once

namespace weft::cuda {

[[noreturn]] void refuse(const char* operation, const char* why);  // BugError

inline void require(bool condition, const char* operation, const char* why) {
  if (!condition) refuse(operation, why);
}

// RunError naming `what` unless a call of CUDA succeeded. code: a cudaError_t.
void check_cuda(int code, const char* what);

}  // namespace weft::cuda
