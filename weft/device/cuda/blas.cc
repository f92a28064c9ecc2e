#include "weft/device/cuda/blas.h"

#include <algorithm>

#include "weft/base/error.h"
#include "weft/device/cuda/refuse.h"
#include "weft/device/cuda/table.h"
#include "weft/device/operations/elementwise.h"

namespace weft::cuda {

namespace {

cudaDataType_t type_of(DType dtype) { return dtype == DType::bf16 ? CUDA_R_16BF : CUDA_R_32F; }

// Bytes that an address is a multiple of, at most 256.
std::int64_t alignment_of(const void* data) {
  const auto address = reinterpret_cast<std::uintptr_t>(data) | 256;
  return static_cast<std::int64_t>(address & (~address + 1));
}

// What is added to the product, with a factor of 1.
const Tensor* addend_of(const Matmul& op) {
  if (op.residual.given()) return &op.residual;
  return op.store == Store::add ? &op.c : nullptr;
}

}  // namespace

// cuBLASLt thinks in columns: our c [m, n] is its c' [n, m], which is b' a'. So its first factor is our b.
struct Blas::Choice {
  const BlasLibrary& library;
  cublasLtMatmulDesc_t product = nullptr;
  cublasLtMatrixLayout_t a = nullptr, b = nullptr, c = nullptr, d = nullptr;
  cublasLtMatmulAlgo_t algorithm = {};
  bool found = false;

  explicit Choice(const BlasLibrary& l) : library(l) {}
  ~Choice() {
    for (cublasLtMatrixLayout_t layout : {a, b, c, d})
      if (layout) library.cublasLtMatrixLayoutDestroy(layout);
    if (product) library.cublasLtMatmulDescDestroy(product);
  }
};

Blas::Blas() { check(library_.cublasLtCreate(&handle_), "starting cuBLASLt"); }

Blas::~Blas() {
  choices_.clear();
  library_.cublasLtDestroy(handle_);
}

void Blas::check(cublasStatus_t status, const char* what) const {
  if (status != CUBLAS_STATUS_SUCCESS)
    throw RunError("{}: cuBLASLt says {}", what, library_.cublasLtGetStatusString(status));
}

std::unique_ptr<Blas::Choice> Blas::choose(const Matmul& op, const Key& key) {
  auto made = std::make_unique<Choice>(library_);
  const bool single = op.a.dtype == DType::f32;
  const auto layout = [&](const Tensor& t) {
    cublasLtMatrixLayout_t made_layout = nullptr;
    check(library_.cublasLtMatrixLayoutCreate(&made_layout, type_of(t.dtype), static_cast<std::uint64_t>(t.shape[1]),
                                              static_cast<std::uint64_t>(t.shape[0]), t.stride),
          "describing a matrix");
    return made_layout;
  };
  // Pedantic: true f32 products, for proofs.
  check(library_.cublasLtMatmulDescCreate(&made->product, single ? CUBLAS_COMPUTE_32F_PEDANTIC : CUBLAS_COMPUTE_32F,
                                          CUDA_R_32F),
        "describing a product");
  const auto set = [&](cublasLtMatmulDescAttributes_t attribute, const auto& value) {
    check(library_.cublasLtMatmulDescSetAttribute(made->product, attribute, &value, sizeof value),
          "describing a product");
  };
  const cublasOperation_t first = op.transpose_b == Transposed::yes ? CUBLAS_OP_T : CUBLAS_OP_N;
  const cublasOperation_t second = op.transpose_a == Transposed::yes ? CUBLAS_OP_T : CUBLAS_OP_N;
  set(CUBLASLT_MATMUL_DESC_TRANSA, first);
  set(CUBLASLT_MATMUL_DESC_TRANSB, second);
  if (op.bias.given()) {
    set(CUBLASLT_MATMUL_DESC_EPILOGUE, CUBLASLT_EPILOGUE_BIAS);
    set(CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, type_of(op.bias.dtype));
    const void* bias = op.bias.data;
    set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, bias);
  }
  made->a = layout(op.b);
  made->b = layout(op.a);
  made->c = layout(addend_of(op) ? *addend_of(op) : op.c);
  made->d = layout(op.c);

  cublasLtMatmulPreference_t preference = nullptr;
  check(library_.cublasLtMatmulPreferenceCreate(&preference), "asking for an algorithm");
  const auto prefer = [&](cublasLtMatmulPreferenceAttributes_t attribute, const auto& value) {
    check(library_.cublasLtMatmulPreferenceSetAttribute(preference, attribute, &value, sizeof value),
          "asking for an algorithm");
  };
  prefer(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, static_cast<std::uint64_t>(CudaStream::workspace_bytes));
  // Parts of a sum may be added up in the workspace, in a fixed order; never in place, in the order they come.
  prefer(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
         static_cast<std::uint32_t>(CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE));
  prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, static_cast<std::uint32_t>(key[13]));
  prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, static_cast<std::uint32_t>(key[14]));
  prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, static_cast<std::uint32_t>(key[15]));
  prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, static_cast<std::uint32_t>(key[16]));
  cublasLtMatmulHeuristicResult_t result = {};
  int count = 0;
  const cublasStatus_t status = library_.cublasLtMatmulAlgoGetHeuristic(
      handle_, made->product, made->a, made->b, made->c, made->d, preference, 1, &result, &count);
  library_.cublasLtMatmulPreferenceDestroy(preference);
  made->found = status == CUBLAS_STATUS_SUCCESS && count > 0 && result.state == CUBLAS_STATUS_SUCCESS;
  made->algorithm = result.algo;
  return made;
}

const Blas::Choice& Blas::choice(const Matmul& op, const Key& key) {
  const std::scoped_lock lock(mutex_);
  std::unique_ptr<Choice>& known = choices_[key];
  if (!known) known = choose(op, key);
  return *known;
}

bool Blas::multiply(CudaStream& stream, const Matmul& op) {
  const bool one_type = op.a.dtype == op.b.dtype && (op.a.dtype == op.c.dtype || op.c.dtype == DType::f32);
  if (!one_type || (op.bias.given() && op.bias.dtype != op.c.dtype)) return false;
  const Tensor* addend = addend_of(op);
  const Tensor& c = addend ? *addend : op.c;
  const Key key = {op.a.shape[0],
                   op.a.shape[1],
                   op.b.shape[0],
                   op.b.shape[1],
                   op.a.stride,
                   op.b.stride,
                   c.stride,
                   op.c.stride,
                   static_cast<std::int64_t>(op.transpose_a) * 2 + static_cast<std::int64_t>(op.transpose_b),
                   static_cast<std::int64_t>(op.a.dtype) * 16 + static_cast<std::int64_t>(op.c.dtype),
                   addend != nullptr,
                   c.data == op.c.data,
                   op.bias.given(),
                   alignment_of(op.b.data),
                   alignment_of(op.a.data),
                   alignment_of(c.data),
                   alignment_of(op.c.data)};
  const Choice& chosen = choice(op, key);
  if (!chosen.found) return false;
  if (op.bias.given()) {
    const void* bias = op.bias.data;
    check(
        library_.cublasLtMatmulDescSetAttribute(chosen.product, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &bias, sizeof bias),
        "describing a product");
  }
  const float alpha = 1, beta = addend ? 1 : 0;
  check(library_.cublasLtMatmul(handle_, chosen.product, &alpha, op.b.data, chosen.a, op.a.data, chosen.b, &beta,
                                c.data, chosen.c, op.c.data, chosen.d, &chosen.algorithm, stream.workspace(),
                                CudaStream::workspace_bytes, stream.handle()),
        "matmul");
  return true;
}

namespace {

// One factor in bf16, the other in f32 (the router): the former is widened first.
bool multiply_widened(CudaStream& stream, const Matmul& op) {
  if (op.a.dtype == op.b.dtype || op.c.dtype != DType::f32) return false;
  Matmul wide = op;
  Tensor& narrow = op.a.dtype == DType::bf16 ? wide.a : wide.b;
  const Tensor from = narrow;
  narrow = Tensor(stream.scratch(2 * from.bytes()), DType::f32, from.shape);
  cast(stream, {from, narrow});
  return stream.blas().multiply(stream, wide);
}

}  // namespace

void matmul(Stream& stream, const Matmul& op) {
  const auto fits = [](bool condition, const char* why) { require(condition, "matmul", why); };
  fits(op.a.shape.dims() == 2 && op.b.shape.dims() == 2 && op.c.shape.dims() == 2, "its operands are not matrices");
  const bool ta = op.transpose_a == Transposed::yes, tb = op.transpose_b == Transposed::yes;
  const std::int64_t m = op.c.shape[0], n = op.c.shape[1], k = ta ? op.a.shape[0] : op.a.shape[1];
  fits((ta ? op.a.shape[1] : op.a.shape[0]) == m, "a and c differ in rows");
  fits((tb ? op.b.shape[0] : op.b.shape[1]) == n, "b and c differ in columns");
  fits((tb ? op.b.shape[1] : op.b.shape[0]) == k, "a and b differ in the dim that is summed over");
  fits(!op.bias.given() || op.bias.shape.elements() == n, "bias and c differ in columns");
  if (op.residual.given()) {
    fits(op.store == Store::write, "a residual goes only with Store::write");
    fits(op.residual.dtype == op.c.dtype && op.residual.shape == op.c.shape, "residual and c differ");
  }
  if (m == 0 || n == 0) return;
  CudaStream& s = cuda_stream(stream);
  if (k > 0 && (s.blas().multiply(s, op) || multiply_widened(s, op))) return;
  tile_matmul(s, op);
}

}  // namespace weft::cuda
