// cross_entropy, and its two halves where ranks split the vocabulary.
#include <cmath>
#include <limits>

#include "weft/device/argument_checks.h"
#include "weft/device/cpu/kernels/dispatch.h"
#include "weft/device/cpu/kernels/lane_sum.h"
#include "weft/device/operations/loss.h"

namespace weft::WEFT_ISA {

namespace {

// The largest logit, and the sum of exp(logit - largest).
struct Softmax {
  double highest, sum;
};

// In blocks that stay in the first-level cache, so that memory is read once; the sums of blocks are added in double.
template <class L>
Softmax softmax_of(const L* logits, std::int64_t columns) {
  using Acc = Accumulator<L>;
  constexpr std::int64_t block = 2048;
  Acc highest = -std::numeric_limits<Acc>::infinity();
  double sum = 0;
  for (std::int64_t c0 = 0; c0 < columns; c0 += block) {
    const std::int64_t c1 = std::min(c0 + block, columns);
    Acc top = -std::numeric_limits<Acc>::infinity();
#pragma omp simd reduction(max : top)
    for (std::int64_t c = c0; c < c1; ++c) top = widen(logits[c]) > top ? widen(logits[c]) : top;
    if (top > highest) {
      sum *= std::exp(static_cast<double>(highest - top));
      highest = top;
    }
    const L* first = logits + c0;
    const Acc part = lane_sum<Acc>(
        c1 - c0, [=](std::int64_t c)
                     __attribute__((always_inline)) { return fast_exp_negative(widen(first[c]) - highest); });
    sum += static_cast<double>(part);
  }
  return {static_cast<double>(highest), sum};
}

// label: its column; it may be another rank's.
template <class L, class D>
void row_gradient(const L* logits, D* dlogits, const Softmax& softmax, double scale, std::int64_t label,
                  std::int64_t vocabulary, std::int64_t columns) {
  using Acc = Accumulator<L>;
  const Acc highest = static_cast<Acc>(softmax.highest), factor = static_cast<Acc>(scale / softmax.sum);
  // Before the loop: dlogits may be the logits.
  const bool here = label >= 0 && label < vocabulary;
  const double p = here ? std::exp(static_cast<double>(widen(logits[label])) - softmax.highest) / softmax.sum : 0;
#pragma omp simd
  for (std::int64_t c = 0; c < vocabulary; ++c)
    dlogits[c] = narrow<D>(fast_exp_negative(widen(logits[c]) - highest) * factor);
  if (here) dlogits[label] = narrow<D>(static_cast<Acc>(scale * (p - 1)));
  clear(dlogits + vocabulary, columns - vocabulary);
}

// In the order of rows, whoever computed them.
template <class Acc>
void store_loss(const double* losses, std::int64_t rows, double scale, Store store, const Tensor& to) {
  double sum = 0;
  for (std::int64_t r = 0; r < rows; ++r) sum += losses[r];
  Acc& loss = *to.as<Acc>();
  loss = static_cast<Acc>(scale * sum + (store == Store::add ? static_cast<double>(loss) : 0));
}

template <class L, class D>
void run(Stream& stream, const CrossEntropy& op) {
  using Acc = Accumulator<L>;
  constexpr const char* name = "cross_entropy";
  const std::int64_t rows = op.logits.rows(), columns = columns_of(op.logits), vocabulary = op.vocabulary;
  const std::int32_t* labels = op.labels.as<std::int32_t>();
  Acc* row_losses = optional<Acc>(op.row_losses);
  const double scale = read_scalar(name, op.scale);
  double* losses = static_cast<double*>(thread_scratch(static_cast<std::size_t>(rows) * sizeof(double)));
  split_rows(stream, rows, columns, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t r = begin; r < end; ++r) {
      const L* logits = row<L>(op.logits, r);
      D* dlogits = op.dlogits.given() ? row<D>(op.dlogits, r) : nullptr;
      require(labels[r] < vocabulary, name, "a label beyond the vocabulary");
      losses[r] = 0;
      if (labels[r] >= 0) {
        const Softmax softmax = softmax_of(logits, vocabulary);
        losses[r] = std::log(softmax.sum) + (softmax.highest - static_cast<double>(widen(logits[labels[r]])));
        if (dlogits != nullptr) row_gradient(logits, dlogits, softmax, scale, labels[r], vocabulary, columns);
      } else if (dlogits != nullptr) {
        clear(dlogits, columns);
      }
      if (row_losses != nullptr) row_losses[r] = static_cast<Acc>(losses[r]);
    }
  });
  store_loss<Acc>(losses, rows, scale, op.store, op.loss);
}

// The softmax over the columns of all ranks, and the label's logit; statistics of the row on the first rank, and the
// numbers from one rank's to the next one's.
struct WholeSoftmax {
  Softmax softmax;
  double label_logit;
};
WholeSoftmax whole_softmax(const double* statistics, std::int64_t ranks, std::int64_t step) {
  WholeSoftmax whole{{-std::numeric_limits<double>::infinity(), 0}, 0};
  for (std::int64_t k = 0; k < ranks; ++k)
    whole.softmax.highest = std::max(whole.softmax.highest, statistics[k * step]);
  for (std::int64_t k = 0; k < ranks; ++k) {
    const double* of_rank = statistics + k * step;
    whole.softmax.sum += of_rank[1] * std::exp(of_rank[0] - whole.softmax.highest);
    whole.label_logit += of_rank[2];
  }
  return whole;
}

template <class L, class D>
void run(Stream& stream, const SplitCrossEntropy& op) {
  using Acc = Accumulator<L>;
  constexpr const char* name = "split_cross_entropy";
  const std::int64_t rows = op.logits.rows(), columns = columns_of(op.logits);
  const std::int64_t ranks = rows > 0 ? op.statistics.shape.elements() / (3 * rows) : 0;
  const std::int32_t* labels = op.labels.as<std::int32_t>();
  const double* statistics = op.statistics.as<double>();
  const double scale = read_scalar(name, op.scale);
  double* losses = static_cast<double*>(thread_scratch(static_cast<std::size_t>(rows) * sizeof(double)));
  split_rows(stream, rows, columns, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t r = begin; r < end; ++r) {
      D* dlogits = op.dlogits.given() ? row<D>(op.dlogits, r) : nullptr;
      losses[r] = 0;
      if (labels[r] >= 0) {
        const WholeSoftmax whole = whole_softmax(statistics + 3 * r, ranks, 3 * rows);
        losses[r] = std::log(whole.softmax.sum) + (whole.softmax.highest - whole.label_logit);
        if (dlogits != nullptr)
          row_gradient(row<L>(op.logits, r), dlogits, whole.softmax, scale, labels[r] - op.first, op.vocabulary,
                       columns);
      } else if (dlogits != nullptr) {
        clear(dlogits, columns);
      }
    }
  });
  store_loss<Acc>(losses, rows, scale, op.store, op.loss);
}

template <class Op>
void with_dlogits(const char* name, Stream& stream, const Op& op) {
  check_arguments(name, op);
  with_storage(name, op.logits.dtype, [&](auto type) {
    using L = typename decltype(type)::type;
    if (!op.dlogits.given() || op.dlogits.dtype == op.logits.dtype) return run<L, L>(stream, op);
    if constexpr (dtype_of<L>() == DType::f32)
      if (op.dlogits.dtype == DType::bf16) return run<L, bfloat16>(stream, op);
    refuse(name, "dlogits are neither in the logits' dtype nor bf16");
  });
}

}  // namespace

void cross_entropy(Stream& stream, const CrossEntropy& op) { with_dlogits("cross_entropy", stream, op); }

void split_cross_entropy(Stream& stream, const SplitCrossEntropy& op) {
  with_dlogits("split_cross_entropy", stream, op);
}

void vocabulary_statistics(Stream& stream, const VocabularyStatistics& op) {
  constexpr const char* name = "vocabulary_statistics";
  check_arguments(name, op);
  const std::int32_t* labels = op.labels.as<std::int32_t>();
  double* statistics = op.statistics.as<double>();
  with_storage(name, op.logits.dtype, [&](auto type) {
    using L = typename decltype(type)::type;
    split_rows(stream, op.logits.rows(), columns_of(op.logits), [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t r = begin; r < end; ++r) {
        const L* logits = row<L>(op.logits, r);
        const Softmax softmax = softmax_of(logits, op.vocabulary);
        const std::int64_t label = labels[r] - op.first;
        const bool here = labels[r] >= 0 && label >= 0 && label < op.vocabulary;
        double* out = statistics + 3 * r;
        out[0] = softmax.highest;
        out[1] = softmax.sum;
        out[2] = here ? static_cast<double>(widen(logits[label])) : 0;
      }
    });
  });
}

}  // namespace weft::WEFT_ISA
