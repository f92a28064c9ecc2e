// A matrix product on strided matrices of any float dtype, as kernels of all instruction sets see it, and the path that
// uses the CPU's bfloat16 instructions where it has them.
#pragma once

#include <cstdint>

#include "weft/device/tensor.h"

namespace weft {

// A factor of a product. at(p, i): p is summed over, i is a row (left factor) or a column (right one) of the result.
struct Factor {
  const void* data = nullptr;
  DType dtype = DType::f32;
  std::int64_t stride = 0;
  bool sum_contiguous = false;  // at(p, i) is data[i * stride + p], otherwise data[p * stride + i]

  std::int64_t offset(std::int64_t p, std::int64_t i) const { return sum_contiguous ? i * stride + p : p * stride + i; }
};

// c [m, n] = a [m, k] b [k, n] (+ c, if add) (+ bias [n]) (+ residual [m, n]). Not both add and residual.
struct Product {
  std::int64_t m = 0, n = 0, k = 0;
  Factor a, b;
  void* c = nullptr;
  DType c_dtype = DType::f32;
  std::int64_t c_stride = 0;
  bool add = false;
  const void* bias = nullptr;
  DType bias_dtype = DType::f32;
  const void* residual = nullptr;  // of c's dtype; may be c
  std::int64_t residual_stride = 0;
  bool varying = false;  // m and k differ from call to call (routed rows): paths that compile for a shape must not
};

// Rows [m0, m1) and columns [n0, n1) of a product, as a product.
Product part_of(const Product& product, std::int64_t m0, std::int64_t m1, std::int64_t n0, std::int64_t n1);

// Whether this CPU multiplies bfloat16 directly (AVX512-BF16 or AMX) and oneDNN knows how.
bool has_bfloat16_instructions();
// Whether bfloat16_product can compute it: both factors bf16, the result f32 or bf16.
bool suits_bfloat16_product(const Product& product);
// By oneDNN, on the calling thread alone. Where the CPU lacks the instructions oneDNN emulates them: right, but slow.
// Bits may depend on how a product is cut. Keeps up to 128 compiled shapes per thread, and 4 MiB of scratch.
void bfloat16_product(const Product& product);

}  // namespace weft
