// cuBLASLt, loaded at run time: it is larger than everything else together, and a machine without a GPU need not have
// it.
#pragma once

#include <string>

#include <cublasLt.h>

namespace weft::cuda {

#define WEFT_BLAS_FUNCTIONS(X)       \
  X(cublasLtCreate)                  \
  X(cublasLtDestroy)                 \
  X(cublasLtGetVersion)              \
  X(cublasLtGetStatusString)         \
  X(cublasLtMatmul)                  \
  X(cublasLtMatmulAlgoGetHeuristic)  \
  X(cublasLtMatmulDescCreate)        \
  X(cublasLtMatmulDescDestroy)       \
  X(cublasLtMatmulDescSetAttribute)  \
  X(cublasLtMatrixLayoutCreate)      \
  X(cublasLtMatrixLayoutDestroy)     \
  X(cublasLtMatmulPreferenceCreate)  \
  X(cublasLtMatmulPreferenceDestroy) \
  X(cublasLtMatmulPreferenceSetAttribute)

struct BlasLibrary {
#define WEFT_POINTER(name) decltype(&::name) name = nullptr;
  WEFT_BLAS_FUNCTIONS(WEFT_POINTER)
#undef WEFT_POINTER

  BlasLibrary();  // RunError with what was tried and why it does not load
};

// "13.0.2", or why it does not load.
std::string blas_version();

}  // namespace weft::cuda
