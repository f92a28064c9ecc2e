// cross_entropy: a block for each row; losses of rows are added in order by one more block.
#include "weft/device/cuda/kernels/launch.cuh"
#include "weft/device/cuda/kernels/reduce.cuh"
#include "weft/device/cuda/table.h"
#include "weft/device/operations/loss.h"

namespace weft::cuda {

namespace {

// Two blocks a multiprocessor: the rows that are being read twice (f32, 32,768 logits: 35 MB) stay in the L2 cache.
constexpr int threads = 1024;

__device__ double scalar(const void* data, bool single) {
  return single ? static_cast<double>(*static_cast<const float*>(data)) : *static_cast<const double*>(data);
}

template <int V, class L, class D>
__global__ void __launch_bounds__(threads)
    loss_rows(Rows<const L> all_logits, const std::int32_t* labels, const void* scale, bool single_scale,
              Rows<D> all_dlogits, float* row_losses, double* losses, std::int64_t columns, std::int64_t vocabulary) {
  const std::int64_t r = blockIdx.x;
  const L* logits = all_logits[r];
  D* dlogits = all_dlogits.data != nullptr ? all_dlogits[r] : nullptr;
  const std::int32_t label = labels[r];
  if (label < 0 || label >= vocabulary) {
    if (dlogits != nullptr)
      for (std::int64_t c = threadIdx.x; c < columns; c += threads) dlogits[c] = narrow<D>(0.0f);
    if (threadIdx.x == 0) {
      losses[r] = 0;
      if (row_losses != nullptr) row_losses[r] = 0;
    }
    return;
  }
  // The largest logit so far and the sum of exp(logit - largest), in one reading.
  float top = -INFINITY, sum = 0, v[V];
  const std::int64_t whole = vocabulary / V * V;
  for (std::int64_t c = threadIdx.x * V; c < whole; c += threads * V) {
    load<V>(logits + c, v);
    float high = top;
#pragma unroll
    for (int i = 0; i < V; ++i) high = v[i] > high ? v[i] : high;
    float part = 0;
#pragma unroll
    for (int i = 0; i < V; ++i) part += expf(v[i] - high);
    sum = (top == -INFINITY ? 0.0f : sum * expf(top - high)) + part;
    top = high;
  }
  for (std::int64_t c = whole + threadIdx.x; c < vocabulary; c += threads) {
    const float x = widen(logits[c]), high = x > top ? x : top;
    sum = (top == -INFINITY ? 0.0f : sum * expf(top - high)) + expf(x - high);
    top = high;
  }
  const float highest = block_max<threads>(top);
  const double total =
      block_sum<threads>(top == -INFINITY ? 0.0 : static_cast<double>(sum) * exp(static_cast<double>(top - highest)));
  const double label_logit = static_cast<double>(widen(logits[label]));
  if (threadIdx.x == 0) {
    const double loss = log(total) + (static_cast<double>(highest) - label_logit);
    losses[r] = loss;
    if (row_losses != nullptr) row_losses[r] = static_cast<float>(loss);
  }
  if (dlogits == nullptr) return;
  const double s = scalar(scale, single_scale);
  const float factor = static_cast<float>(s / total);
  const float at_label = static_cast<float>(s * (exp(label_logit - static_cast<double>(highest)) / total - 1));
  __syncthreads();  // all have read the label's logit; dlogits may be the logits
  for (std::int64_t c = threadIdx.x * V; c < whole; c += threads * V) {
    load<V>(logits + c, v);
#pragma unroll
    for (int i = 0; i < V; ++i) v[i] = c + i == label ? at_label : expf(v[i] - highest) * factor;
    store<V>(dlogits + c, v);
  }
  for (std::int64_t c = whole + threadIdx.x; c < columns; c += threads)
    dlogits[c] = narrow<D>(c >= vocabulary ? 0.0f : c == label ? at_label : expf(widen(logits[c]) - highest) * factor);
}

__global__ void add_losses(const double* losses, std::int64_t rows, const void* scale, bool single_scale, float* loss,
                           bool add) {
  double sum = 0;
  for (std::int64_t r = threadIdx.x; r < rows; r += 1024) sum += losses[r];
  sum = block_sum<1024>(sum);
  if (threadIdx.x == 0)
    *loss = static_cast<float>(scalar(scale, single_scale) * sum + (add ? static_cast<double>(*loss) : 0.0));
}

}  // namespace

void cross_entropy(Stream& stream, const CrossEntropy& op) {
  constexpr const char* name = "cross_entropy";
  const std::int64_t rows = op.logits.rows(), columns = columns_of(op.logits);
  require(rows == 0 || (op.vocabulary >= 1 && op.vocabulary <= columns), name,
          "the vocabulary exceeds the logits' columns");
  require(op.labels.dtype == DType::i32 && op.labels.shape.elements() == rows, name, "labels are not i32 [S]");
  require(op.logits.dtype == DType::f32 && op.loss.dtype == DType::f32, name, "needs f32 logits and loss on a GPU");
  require(!op.row_losses.given() || (op.row_losses.dtype == DType::f32 && op.row_losses.shape.elements() == rows), name,
          "row_losses are not f32 [S]");
  require(!op.dlogits.given() || same_size(op.logits, op.dlogits), name, "logits and dlogits differ in shape");
  require(op.scale.dtype == DType::f32 || op.scale.dtype == DType::f64, name, "needs its scale in f32 or f64");
  CudaStream& s = cuda_stream(stream);
  double* losses = s.scratch_of<double>(std::max<std::int64_t>(rows, 1));
  const bool single = op.scale.dtype == DType::f32;
  if (rows > 0)
    with_storage(name, op.dlogits.given() ? op.dlogits.dtype : DType::f32, [&](auto type) {
      using D = typename decltype(type)::type;
      with_pack(pack, {&op.logits, &op.dlogits}, [&](auto v) {
        constexpr int V = decltype(v)::value;
        loss_rows<V, float, D><<<static_cast<unsigned>(rows), threads, 0, s.handle()>>>(
            rows_of<const float>(op.logits), op.labels.as<std::int32_t>(), op.scale.data, single,
            rows_of<D>(op.dlogits), optional<float>(op.row_losses), losses, columns, op.vocabulary);
        launched(name);
      });
    });
  add_losses<<<1, 1024, 0, s.handle()>>>(losses, rows, op.scale.data, single, op.loss.as<float>(),
                                         op.store == Store::add);
  launched(name);
}

}  // namespace weft::cuda
