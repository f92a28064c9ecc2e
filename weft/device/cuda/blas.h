// Products by cuBLASLt. The algorithm for a shape is chosen when it is met first and kept: the same shape always gives
// the same bits.
#pragma once

#include <array>
#include <map>
#include <memory>
#include <mutex>

#include "weft/device/cuda/blas_library.h"
#include "weft/device/cuda/stream.h"
#include "weft/device/operations/matmul.h"

namespace weft::cuda {

class Blas {
 public:
  Blas();
  ~Blas();
  Blas(const Blas&) = delete;
  Blas& operator=(const Blas&) = delete;

  // False: cuBLASLt has nothing for these types or this alignment.
  bool multiply(CudaStream& stream, const Matmul& op);

 private:
  struct Choice;
  using Key = std::array<std::int64_t, 17>;
  const Choice& choice(const Matmul& op, const Key& key);
  std::unique_ptr<Choice> choose(const Matmul& op, const Key& key);
  void check(cublasStatus_t status, const char* what) const;

  BlasLibrary library_;
  cublasLtHandle_t handle_ = nullptr;
  std::mutex mutex_;
  std::map<Key, std::unique_ptr<Choice>> choices_;
};

// The kernel of our own for what cuBLASLt does not do: factors of different types, empty sums, odd alignment.
void tile_matmul(CudaStream& stream, const Matmul& op);

}  // namespace weft::cuda
