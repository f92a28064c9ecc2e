// vocabulary_statistics and split_cross_entropy: a block for each row of this rank's logits.
#include "weft/device/argument_checks.h"
#include "weft/device/cuda/kernels/softmax.cuh"
#include "weft/device/cuda/table.h"
#include "weft/device/operations/loss.h"

namespace weft::cuda {

namespace {

constexpr int statistics_per_row = 3;

template <int V>
__global__ void __launch_bounds__(threads) row_statistics(Rows<const float> all_logits, const std::int32_t* labels,
                                                          double* statistics, std::int64_t first, int vocabulary) {
  const std::int64_t r = blockIdx.x;
  const float* logits = all_logits[r];
  const Exponentials sums = sum_exponentials<V>(logits, vocabulary);
  if (threadIdx.x != 0) return;
  const std::int64_t label = labels[r] - first;
  double* out = statistics + statistics_per_row * r;
  out[0] = static_cast<double>(sums.top);
  out[1] = sums.sum;
  out[2] = labels[r] >= 0 && label >= 0 && label < vocabulary ? static_cast<double>(logits[label]) : 0.0;
}

template <int V, class D>
__global__ void __launch_bounds__(threads)
    split_loss_rows(Rows<const float> all_logits, const std::int32_t* labels, const void* scale, bool single_scale,
                    const double* statistics, int ranks, Rows<D> all_dlogits, double* losses, int columns,
                    std::int64_t first, int vocabulary) {
  const std::int64_t r = blockIdx.x;
  D* dlogits = all_dlogits.data != nullptr ? all_dlogits[r] : nullptr;
  if (labels[r] < 0) {
    for (int c = static_cast<int>(threadIdx.x); dlogits != nullptr && c < columns; c += threads)
      dlogits[c] = narrow<D>(0.0f);
    if (threadIdx.x == 0) losses[r] = 0;
    return;
  }
  const std::int64_t step = static_cast<std::int64_t>(statistics_per_row) * gridDim.x;
  const double* own = statistics + statistics_per_row * r;
  double highest = own[0], total = 0, label_logit = 0;
  for (int k = 1; k < ranks; ++k) highest = own[k * step] > highest ? own[k * step] : highest;
  for (int k = 0; k < ranks; ++k) {
    total += own[k * step + 1] * static_cast<double>(expf(static_cast<float>(own[k * step] - highest)));
    label_logit += own[k * step + 2];
  }
  if (threadIdx.x == 0) losses[r] = log(total) + (highest - label_logit);
  if (dlogits == nullptr) return;
  const double s = scalar(scale, single_scale);
  const std::int64_t label = labels[r] - first;
  const bool here = label >= 0 && label < vocabulary;
  const float at_label = here ? static_cast<float>(s * (exp(label_logit - highest) / total - 1)) : 0.0f;
  write_gradients<V>(all_logits[r], dlogits, vocabulary, columns, static_cast<float>(highest),
                     static_cast<float>(s / total), here ? static_cast<int>(label) : -1, at_label);
}

void require_columns(const char* name, const Tensor& logits) {
  require(columns_of(logits) < std::int64_t{1} << 30, name, "more than a billion columns");
  require(logits.dtype == DType::f32, name, "needs f32 logits on a GPU");
}

}  // namespace

void vocabulary_statistics(Stream& stream, const VocabularyStatistics& op) {
  constexpr const char* name = "vocabulary_statistics";
  check_arguments(name, op);
  require_columns(name, op.logits);
  const std::int64_t rows = op.logits.rows();
  if (rows == 0) return;
  with_pack(pack, {&op.logits}, [&](auto v) {
    row_statistics<decltype(v)::value><<<static_cast<unsigned>(rows), threads, 0, cuda_stream(stream).handle()>>>(
        rows_of<const float>(op.logits), op.labels.as<std::int32_t>(), op.statistics.as<double>(), op.first,
        static_cast<int>(op.vocabulary));
  });
  launched(name);
}

void split_cross_entropy(Stream& stream, const SplitCrossEntropy& op) {
  constexpr const char* name = "split_cross_entropy";
  check_arguments(name, op);
  require_columns(name, op.logits);
  const std::int64_t rows = op.logits.rows(), columns = columns_of(op.logits);
  CudaStream& s = cuda_stream(stream);
  double* losses = s.scratch_of<double>(std::max<std::int64_t>(rows, 1));
  const bool single = op.scale.dtype == DType::f32;
  if (rows > 0) {
    const auto ranks = static_cast<int>(op.statistics.shape.elements() / (statistics_per_row * rows));
    with_storage(name, op.dlogits.given() ? op.dlogits.dtype : DType::f32, [&](auto type) {
      using D = typename decltype(type)::type;
      with_pack(pack, {&op.logits, &op.dlogits}, [&](auto v) {
        split_loss_rows<decltype(v)::value, D><<<static_cast<unsigned>(rows), threads, 0, s.handle()>>>(
            rows_of<const float>(op.logits), op.labels.as<std::int32_t>(), op.scale.data, single,
            op.statistics.as<double>(), ranks, rows_of<D>(op.dlogits), losses, static_cast<int>(columns), op.first,
            static_cast<int>(op.vocabulary));
      });
    });
  }
  add_losses<<<1, 1024, 0, s.handle()>>>(losses, rows, op.scale.data, single, op.loss.as<float>(),
                                         op.store == Store::add);
  launched(name);
}

}  // namespace weft::cuda
