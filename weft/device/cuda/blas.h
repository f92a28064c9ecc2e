// Products by cuBLASLt. The algorithm for a shape is chosen when it is met first, by measuring where it is large, and
// kept: the same shape always gives the same bits, on all processors or on a part of them.
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
  using Key = std::array<std::int64_t, 18>;
  const Choice& choice(CudaStream& stream, const Matmul& op, const Key& key);
  std::unique_ptr<Choice> choose(const Matmul& op, const Key& key);
  void measure(CudaStream& stream, const Matmul& op, Choice& choice);
  void limit(CudaStream& stream, const Matmul& op, Choice& limited);
  cublasStatus_t queue(CudaStream& stream, const Matmul& op, const Choice& chosen, std::size_t algorithm);
  void set_bias(const Choice& choice, const Matmul& op);
  void check(cublasStatus_t status, const char* what) const;

  BlasLibrary library_;
  cublasLtHandle_t handle_ = nullptr;
  std::mutex mutex_;
  std::map<Key, std::unique_ptr<Choice>> choices_;
};

// Products with factors in f32 of which a factor or the result is in bf16. False: cuBLASLt has nothing for them.
bool split_matmul(CudaStream& stream, const Matmul& op);
// The kernel of our own for what cuBLASLt does not do: empty sums, odd alignment.
void tile_matmul(CudaStream& stream, const Matmul& op);

}  // namespace weft::cuda
