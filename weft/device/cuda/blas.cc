#include "weft/device/cuda/blas.h"

#include <algorithm>
#include <span>
#include <vector>

#include "weft/base/error.h"
#include "weft/device/argument_checks.h"
#include "weft/device/cuda/check.h"
#include "weft/device/cuda/kernels/fingerprint.h"
#include "weft/device/cuda/table.h"

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

// What it takes to run a product several times, with the memory that it is to write. Everything is given back in the end.
class Measurement {
 public:
  Measurement(CudaStream& stream, const Matmul& op) : stream_(stream), c_(op.c) {
    cudaStreamCaptureStatus capturing = cudaStreamCaptureStatusNone;
    check_cuda(cudaStreamIsCapturing(stream.handle(), &capturing), "matmul");
    if (capturing != cudaStreamCaptureStatusNone) return;
    possible_ = allocate(&print_, sizeof(Fingerprint));
    const Tensor* addend = addend_of(op);
    if (possible_ && addend && addend->data == c_.data) {
      possible_ = allocate(&before_, c_.bytes());
      if (possible_) copy(before_, width(), c_.data, pitch());
    }
    for (cudaEvent_t& event : events_) check_cuda(cudaEventCreate(&event), "matmul");
  }
  ~Measurement() {
    if (!print_) return;  // a stream that is being captured must not be waited for
    cudaFreeAsync(print_, stream_.handle());
    if (before_) cudaFreeAsync(before_, stream_.handle());
    cudaStreamSynchronize(stream_.handle());
    for (cudaEvent_t event : events_)
      if (event) cudaEventDestroy(event);
  }
  Measurement(const Measurement&) = delete;
  Measurement& operator=(const Measurement&) = delete;

  bool possible() const { return possible_; }
  // c as it was before, where the product is added to it.
  void restore() {
    if (before_) copy(c_.data, pitch(), before_, width());
  }
  Fingerprint fingerprint() {
    auto* there = static_cast<Fingerprint*>(print_);
    queue_fingerprint(stream_, c_, there);
    Fingerprint here;
    check_cuda(cudaMemcpyAsync(&here, there, sizeof here, cudaMemcpyDeviceToHost, stream_.handle()), "matmul");
    check_cuda(cudaStreamSynchronize(stream_.handle()), "matmul");
    return here;
  }
  template <class Body>
  double milliseconds(const Body& body) {
    float least = 0;
    for (int i = 0; i < 4; ++i) {
      check_cuda(cudaEventRecord(events_[0], stream_.handle()), "matmul");
      body();
      check_cuda(cudaEventRecord(events_[1], stream_.handle()), "matmul");
      check_cuda(cudaEventSynchronize(events_[1]), "matmul");
      float time = 0;
      check_cuda(cudaEventElapsedTime(&time, events_[0], events_[1]), "matmul");
      if (i == 0 || time < least) least = time;
    }
    return static_cast<double>(least);
  }

 private:
  // In the stream's order: cudaFree would wait for the whole device, also for kernels of other ranks that wait for us.
  bool allocate(void** memory, std::size_t bytes) {
    if (cudaMallocAsync(memory, bytes, stream_.handle()) == cudaSuccess) return true;
    cudaGetLastError();  // then it is not measured
    *memory = nullptr;
    return false;
  }
  std::size_t width() const { return static_cast<std::size_t>(c_.columns()) * size_of(c_.dtype); }
  std::size_t pitch() const { return static_cast<std::size_t>(c_.stride) * size_of(c_.dtype); }
  void copy(void* to, std::size_t to_pitch, const void* from, std::size_t from_pitch) {
    check_cuda(cudaMemcpy2DAsync(to, to_pitch, from, from_pitch, width(), static_cast<std::size_t>(c_.rows()),
                                 cudaMemcpyDeviceToDevice, stream_.handle()),
               "matmul");
  }

  CudaStream& stream_;
  Tensor c_;
  void *print_ = nullptr, *before_ = nullptr;
  bool possible_ = false;
  cudaEvent_t events_[2] = {};
};

}  // namespace

// cuBLASLt stores matrices by columns: our c [m, n] is its c' [n, m], which is b' a'. So its first factor is our b.
struct Blas::Choice {
  const BlasLibrary& library;
  cublasLtMatmulDesc_t product = nullptr;
  cublasLtMatrixLayout_t a = nullptr, b = nullptr, c = nullptr, d = nullptr;
  std::vector<cublasLtMatmulAlgo_t> algorithms;  // the chosen one first

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
    throw RunError("{}: cuBLASLt reports {}", what, library_.cublasLtGetStatusString(status));
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
  std::array<cublasLtMatmulHeuristicResult_t, 8> results = {};
  int count = 0;
  const cublasStatus_t status =
      library_.cublasLtMatmulAlgoGetHeuristic(handle_, made->product, made->a, made->b, made->c, made->d, preference,
                                              static_cast<int>(results.size()), results.data(), &count);
  library_.cublasLtMatmulPreferenceDestroy(preference);
  if (status != CUBLAS_STATUS_SUCCESS) return made;
  for (const cublasLtMatmulHeuristicResult_t& result : std::span(results).first(static_cast<std::size_t>(count)))
    if (result.state == CUBLAS_STATUS_SUCCESS) made->algorithms.push_back(result.algo);
  return made;
}

cublasStatus_t Blas::queue(CudaStream& stream, const Matmul& op, const Choice& chosen, std::size_t algorithm) {
  const Tensor* addend = addend_of(op);
  const float alpha = 1, beta = addend ? 1 : 0;
  return library_.cublasLtMatmul(handle_, chosen.product, &alpha, op.b.data, chosen.a, op.a.data, chosen.b, &beta,
                                 addend ? addend->data : op.c.data, chosen.c, op.c.data, chosen.d,
                                 &chosen.algorithms[algorithm], stream.workspace(), CudaStream::workspace_bytes,
                                 stream.handle());
}

// Of the algorithms that the heuristics name, the fastest of those whose result has the same bits as that of the first:
// so time decides how fast a product is, never what it is.
void Blas::measure(CudaStream& stream, const Matmul& op, Choice& choice) {
  Measurement m(stream, op);
  if (!m.possible()) return;
  const auto run = [&](std::size_t i) { return queue(stream, op, choice, i) == CUBLAS_STATUS_SUCCESS; };
  const auto result_of = [&](std::size_t i) {
    m.restore();
    return run(i) ? m.fingerprint() : Fingerprint{};
  };
  const Fingerprint first = result_of(0);
  std::size_t best = 0;
  if (first.set >= static_cast<std::uint64_t>(op.c.shape.elements()) / 2) {  // zeros would not tell algorithms apart
    double least = m.milliseconds([&] { run(0); }) * 0.98;                   // less than that is chance
    for (std::size_t i = 1; i < choice.algorithms.size(); ++i) {
      const Fingerprint other = result_of(i);
      if (other.hash != first.hash || other.set != first.set) continue;
      const double time = m.milliseconds([&] { run(i); });
      if (time < least) least = time, best = i;
    }
  }
  m.restore();
  std::swap(choice.algorithms[0], choice.algorithms[best]);
}

// For a stream that shares the processors: the same algorithm, told how many there are, if its result has the same bits
// then. (One that deals out parts of sums by processors would give others.)
void Blas::limit(CudaStream& stream, const Matmul& op, Choice& limited) {
  const auto tell = [&](std::int32_t processors) {
    check(library_.cublasLtMatmulDescSetAttribute(limited.product, CUBLASLT_MATMUL_DESC_SM_COUNT_TARGET, &processors,
                                                  sizeof processors),
          "describing a product");
  };
  Measurement m(stream, op);
  if (!m.possible()) return;
  const auto result = [&] {
    m.restore();
    return queue(stream, op, limited, 0) == CUBLAS_STATUS_SUCCESS ? m.fingerprint() : Fingerprint{};
  };
  const Fingerprint all = result();
  if (all.set >= static_cast<std::uint64_t>(op.c.shape.elements()) / 2) {
    tell(stream.processors());
    const Fingerprint some = result();
    if (some.hash != all.hash || some.set != all.set) tell(0);
  }
  m.restore();
}

const Blas::Choice& Blas::choice(CudaStream& stream, const Matmul& op, const Key& key) {
  std::unique_ptr<Choice>& known = choices_[key];
  if (known) return *known;
  known = choose(op, key);
  // Small products are not worth it.
  const double flop = 2.0 * static_cast<double>(op.c.shape.elements()) *
                      static_cast<double>(op.transpose_a == Transposed::yes ? op.a.shape[0] : op.a.shape[1]);
  const bool large = flop > 1e9;
  set_bias(*known, op);
  if (key[17] != 0) {
    Key of_all = key;
    of_all[17] = 0;
    known->algorithms = choice(stream, op, of_all).algorithms;
    if (large && !known->algorithms.empty()) limit(stream, op, *known);
  } else if (large && known->algorithms.size() > 1) {
    measure(stream, op, *known);
  }
  return *known;
}

void Blas::set_bias(const Choice& choice, const Matmul& op) {
  if (!op.bias.given()) return;
  const void* bias = op.bias.data;
  check(library_.cublasLtMatmulDescSetAttribute(choice.product, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &bias, sizeof bias),
        "describing a product");
}

bool Blas::multiply(CudaStream& stream, const Matmul& op) {
  const bool one_type = op.a.dtype == op.b.dtype && (op.a.dtype == op.c.dtype || op.c.dtype == DType::f32);
  if (!one_type || (op.bias.given() && op.bias.dtype != op.c.dtype)) return false;
  static_cast<void>(stream.handle());  // without running, it ends here: nothing is to be chosen yet
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
                   alignment_of(op.c.data),
                   stream.shares_processors() ? stream.processors() : 0};
  const std::scoped_lock lock(mutex_);  // the description of a product is set and used by one at a time
  const Choice& chosen = choice(stream, op, key);
  if (chosen.algorithms.empty()) return false;
  set_bias(chosen, op);
  check(queue(stream, op, chosen, 0), "matmul");
  return true;
}

void matmul(Stream& stream, const Matmul& op) {
  check_arguments("matmul", op);
  if (op.c.shape.elements() == 0) return;
  const std::int64_t k = op.a.shape[op.transpose_a == Transposed::yes ? 0 : 1];
  CudaStream& s = cuda_stream(stream);
  if (k > 0 && (s.blas().multiply(s, op) || split_matmul(s, op))) return;
  tile_matmul(s, op);
}

}  // namespace weft::cuda
