// Products with f32 factors in bf16 models (the router's) on tensor cores. A float is exactly the sum of three bf16
// numbers, high, middle and low; so products of such parts, added up in float, are as good as products of floats.
#include "weft/device/cuda/blas.h"
#include "weft/device/cuda/kernels/launch.cuh"
#include "weft/device/cuda/kernels/values.cuh"

namespace weft::cuda {

namespace {

constexpr const char* name = "matmul";
constexpr int parts = 3;
enum Part : int { high, middle, low };

__device__ void split(float x, bf16 (&to)[parts]) {
  to[high] = narrow<bf16>(x);
  const float top = widen(to[high]);
  float rest = isfinite(top) ? x - top : 0.0f;
  to[middle] = narrow<bf16>(rest);
  rest -= widen(to[middle]);
  to[low] = narrow<bf16>(rest);
}

// Writes `count` copies of a matrix, each `step` elements after the one before: copy i holds part of[i] of every element.
template <int count>
struct Spread {
  Rows<const float> x;
  Rows<bf16> y;
  std::int64_t step;
  Part of[count];
  __device__ void operator()(std::int64_t r, std::int64_t c) const {
    bf16 part[parts];
    split(x[r][c], part);
#pragma unroll
    for (int i = 0; i < count; ++i) y[r][i * step + c] = part[of[i]];
  }
};

// Copies below each other (a matrix of count * rows) or side by side (count * columns).
template <int count>
Tensor spread(CudaStream& stream, const Tensor& x, const Part (&of)[count], bool below, void* to) {
  const std::int64_t rows = x.shape[0], columns = x.shape[1];
  const Tensor y(to, DType::bf16, below ? Shape{count * rows, columns} : Shape{rows, count * columns});
  Spread<count> copies{rows_of<const float>(x), rows_of<bf16>(y), below ? rows * columns : columns, {}};
  for (int i = 0; i < count; ++i) copies.of[i] = of[i];
  launch_over_rows(name, stream, copies, rows, columns);
  return y;
}

// c (+)= low + middle + high (+ bias) (+ residual), each a matrix `step` elements after the one before.
struct AddParts {
  Rows<const float> sums;
  std::int64_t step;
  Rows<float> c;
  const float* bias;
  Rows<const float> residual;
  bool add;
  __device__ void operator()(std::int64_t r, std::int64_t s) const {
    const float* from = sums[r] + s;
    float sum = from[low * step] + from[middle * step] + from[high * step];
    if (bias != nullptr) sum += bias[s];
    if (residual.data != nullptr) sum += residual[r][s];
    c[r][s] = add ? c[r][s] + sum : sum;
  }
};

std::size_t rounded(std::int64_t bytes) { return static_cast<std::size_t>((bytes + 255) / 256 * 256); }
constexpr std::int64_t most_bytes = std::int64_t{1} << 30;  // of scratch memory

// One factor in f32: its parts make three products, side by side in one.
bool multiply_one(CudaStream& stream, const Matmul& op) {
  const bool first = op.a.dtype == DType::f32;  // it is a
  const Tensor& wide = first ? op.a : op.b;
  const bool transposed = (first ? op.transpose_a : op.transpose_b) == Transposed::yes;
  const std::int64_t m = op.c.shape[0], n = op.c.shape[1];
  if (op.bias.given() && op.bias.dtype != DType::f32) return false;
  const std::int64_t factor_bytes = parts * wide.shape.elements() * 2, sum_bytes = parts * m * n * 4;
  if (factor_bytes + sum_bytes > most_bytes) return false;
  auto* memory = static_cast<std::byte*>(stream.scratch(rounded(factor_bytes) + rounded(sum_bytes)));
  const Part of[parts] = {high, middle, low};
  // The dim that c has too is three times as long.
  const Tensor factor = spread(stream, wide, of, first != transposed, memory);
  const Tensor sums(memory + rounded(factor_bytes), DType::f32, first ? Shape{parts * m, n} : Shape{m, parts * n});
  const Matmul product{first ? factor : op.a, first ? op.b : factor, sums, op.transpose_a, op.transpose_b};
  if (!stream.blas().multiply(stream, product)) return false;
  const AddParts add{
      rows_of<const float>(sums),        first ? m * n : n,     rows_of<float>(op.c), optional<const float>(op.bias),
      rows_of<const float>(op.residual), op.store == Store::add};
  launch_over_rows(name, stream, add, m, n);
  return true;
}

// Both in f32, the result in bf16: the sum is six times as long, smallest products first. What is left out (middle * low
// and less) is below 2^-24 of a product.
bool multiply_both(CudaStream& stream, const Matmul& op) {
  constexpr int products = 6;
  const Part of_a[products] = {low, high, middle, middle, high, high},
             of_b[products] = {high, low, middle, high, middle, high};
  const std::int64_t a_bytes = products * op.a.shape.elements() * 2, b_bytes = products * op.b.shape.elements() * 2;
  if (a_bytes + b_bytes > most_bytes || (op.bias.given() && op.bias.dtype != DType::bf16)) return false;
  auto* memory = static_cast<std::byte*>(stream.scratch(rounded(a_bytes) + rounded(b_bytes)));
  Matmul product = op;
  product.a = spread(stream, op.a, of_a, op.transpose_a == Transposed::yes, memory);
  product.b = spread(stream, op.b, of_b, op.transpose_b == Transposed::no, memory + rounded(a_bytes));
  return stream.blas().multiply(stream, product);
}

}  // namespace

bool split_matmul(CudaStream& stream, const Matmul& op) {
  if (op.a.dtype != op.b.dtype) return op.c.dtype == DType::f32 && multiply_one(stream, op);
  return op.a.dtype == DType::f32 && op.c.dtype == DType::bf16 && multiply_both(stream, op);
}

}  // namespace weft::cuda
