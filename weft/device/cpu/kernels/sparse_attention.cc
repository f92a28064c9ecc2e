// Attention over chosen keys. Forward goes by queries; backward by (sequence, kv head), so that the gradients of keys
// and values are added up by one thread in the order of queries. Scratch of a thread in backward: the gradients of one
// kv head over one sequence.
#include "weft/device/operations/sparse_attention.h"

#include <atomic>

#include "weft/device/cpu/kernels/attention_blocks.h"
#include "weft/device/cpu/kernels/indexer.h"

namespace weft::WEFT_ISA {

namespace {

template <class T>
void forward_token(const SparseAttention& op, std::int64_t t, Accumulator<T>* scores, Accumulator<T>* sums) {
  using Acc = Accumulator<T>;
  const Attention& x = op.attention;
  const KeyRow chosen("sparse_attention", op.keys, t);
  const std::int64_t group = x.heads / x.kv_heads;
  for (std::int64_t h = 0; h < x.heads; ++h) {
    const T* q = row<T>(x.q, t) + h * x.dim;
    Acc highest = -std::numeric_limits<Acc>::infinity();
    for (std::int64_t j = 0; j < chosen.count; ++j) {
      scores[j] = static_cast<Acc>(x.scale) * dot(q, row<T>(x.k, chosen.keys[j]) + h / group * x.dim, x.dim);
      highest = scores[j] > highest ? scores[j] : highest;
    }
    const Acc sum = lane_sum<Acc>(
        chosen.count, [=](std::int64_t j) __attribute__((always_inline)) {
          return scores[j] = fast_exp_negative(scores[j] - highest);
        });
    std::fill_n(sums, x.value_dim, Acc{0});
    for (std::int64_t j = 0; j < chosen.count; ++j)
      add_scaled(sums, scores[j], row<T>(x.v, chosen.keys[j]) + h / group * x.value_dim, x.value_dim);
    const Acc inverse = chosen.count > 0 ? Acc{1} / sum : Acc{0};
    for (std::int64_t i = 0; i < x.value_dim; ++i) sums[i] *= inverse;
    store_row(sums, row<T>(x.out, t) + h * x.value_dim, x.value_dim);
    row<Acc>(x.lse, h)[t] = highest + fast_log(sum);
  }
}

// One kv head of tokens [begin, end).
template <class T>
class Backward {
  using Acc = Accumulator<T>;

 public:
  Backward(const SparseAttentionBackward& op, std::int64_t kv_head, std::int64_t begin, std::int64_t end)
      : op_(op), x_(op.forward.attention), kv_head_(kv_head), begin_(begin), end_(end) {
    Carver sizes(nullptr);
    carve(sizes);
    Carver carver(thread_scratch(ScratchUse::left, sizes.used()));
    carve(carver);
  }

  void run() {
    std::fill_n(dk_, (end_ - begin_) * x_.dim, Acc{0});
    std::fill_n(dv_, (end_ - begin_) * x_.value_dim, Acc{0});
    const std::int64_t group = x_.heads / x_.kv_heads;
    for (std::int64_t t = begin_; t < end_; ++t)
      for (std::int64_t h = kv_head_ * group; h < (kv_head_ + 1) * group; ++h) query(t, h);
    for (std::int64_t t = begin_; t < end_; ++t) {
      store_row(dk_ + (t - begin_) * x_.dim, row<T>(op_.dk, t) + kv_head_ * x_.dim, x_.dim);
      store_row(dv_ + (t - begin_) * x_.value_dim, row<T>(op_.dv, t) + kv_head_ * x_.value_dim, x_.value_dim);
    }
  }

 private:
  void carve(Carver& carver) {
    dk_ = carver.take<Acc>((end_ - begin_) * x_.dim);
    dv_ = carver.take<Acc>((end_ - begin_) * x_.value_dim);
    dq_ = carver.take<Acc>(x_.dim);
  }

  void query(std::int64_t t, std::int64_t h) {
    const KeyRow chosen("sparse_attention_backward", op_.forward.keys, t);
    const T *q = row<T>(x_.q, t) + h * x_.dim, *dout = row<T>(op_.dout, t) + h * x_.value_dim;
    const Acc delta = dot(dout, row<T>(x_.out, t) + h * x_.value_dim, x_.value_dim);
    const Acc lse = row<Acc>(x_.lse, h)[t], scale = static_cast<Acc>(x_.scale);
    row<Acc>(op_.scratch, h)[t] = delta;
    std::fill_n(dq_, x_.dim, Acc{0});
    for (std::int64_t j = 0; j < chosen.count; ++j) {
      const std::int64_t key = chosen.keys[j];
      require(key >= begin_ && key < end_, "sparse_attention_backward", "a key of another sequence");
      const T *k = row<T>(x_.k, key) + kv_head_ * x_.dim, *v = row<T>(x_.v, key) + kv_head_ * x_.value_dim;
      const Acc p = fast_exp_negative(scale * dot(q, k, x_.dim) - lse);
      const Acc dscore = scale * p * (dot(dout, v, x_.value_dim) - delta);
      add_scaled(dq_, dscore, k, x_.dim);
      add_scaled(dk_ + (key - begin_) * x_.dim, dscore, q, x_.dim);
      add_scaled(dv_ + (key - begin_) * x_.value_dim, p, dout, x_.value_dim);
    }
    store_row(dq_, row<T>(op_.dq, t) + h * x_.dim, x_.dim);
  }

  const SparseAttentionBackward& op_;
  const Attention& x_;
  std::int64_t kv_head_, begin_, end_;
  Acc *dk_, *dv_, *dq_;
};

}  // namespace

void sparse_attention(Stream& stream, const SparseAttention& op) {
  constexpr const char* name = "sparse_attention";
  const Attention& x = op.attention;
  if (x.q.rows() == 0) return;
  check_arguments(name, op);
  const std::int64_t K = columns_of(op.keys);
  with_storage(name, x.q.dtype, [&](auto type) {
    using T = typename decltype(type)::type;
    using Acc = Accumulator<T>;
    split_rows(stream, x.q.rows(), x.heads * K * (x.dim + x.value_dim), [&](std::int64_t begin, std::int64_t end) {
      Acc* scratch = static_cast<Acc*>(thread_scratch(static_cast<std::size_t>(K + x.value_dim) * sizeof(Acc)));
      for (std::int64_t t = begin; t < end; ++t) forward_token<T>(op, t, scratch, scratch + K);
    });
  });
}

void sparse_attention_backward(Stream& stream, const SparseAttentionBackward& op) {
  constexpr const char* name = "sparse_attention_backward";
  const Attention& x = op.forward.attention;
  const std::int64_t tokens = x.q.rows();
  if (tokens == 0) return;
  check_arguments(name, op);
  // Documents may be of any length: without sequences of one length, all tokens are one.
  const std::int64_t length = !x.boundaries.given() && x.length > 0 ? x.length : tokens;
  const std::int64_t tasks = (tokens + length - 1) / length * x.kv_heads;
  with_storage(name, x.q.dtype, [&](auto type) {
    using T = typename decltype(type)::type;
    std::atomic<std::int64_t> next{0};
    const auto work = [&](int) {
      for (std::int64_t task = next++; task < tasks; task = next++) {
        const std::int64_t begin = task / x.kv_heads * length;
        Backward<T>(op, task % x.kv_heads, begin, std::min(begin + length, tokens)).run();
      }
    };
    if (tasks == 1 || team_of(stream).size() == 1) return work(0);
    team_of(stream).run(std::cref(work));
  });
}

}  // namespace weft::WEFT_ISA
