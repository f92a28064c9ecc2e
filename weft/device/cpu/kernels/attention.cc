// Causal attention, forward: for a few blocks of queries, walks over the blocks of keys they see, keeping the running
// maximum, denominator and output of every query. Scratch of a thread: packed queries and keys and the outputs, about
// 4 * columns_at_once * (dim + value_dim) elements (more if more than columns_at_once / query_block heads share keys).
#include "weft/device/operations/attention.h"

#include <atomic>

#include "weft/device/argument_checks_block.h"
#include "weft/device/cpu/kernels/attention_blocks.h"

namespace weft::WEFT_ISA {

namespace {

template <class T>
constexpr T lowest = std::is_same_v<T, float> ? static_cast<T>(-1e30) : static_cast<T>(-1e300);  // finite: no inf - inf

// Scores [keys][queries] of keys [a, b), rows from `scores`: -infinity where a query does not see a key.
template <class T>
void mask_scores(const BlockLimits<T>& limits, std::int64_t a, std::int64_t b, T* scores) {
  using Int = typename BlockLimits<T>::Int;
  for (Int key = static_cast<Int>(a); key < static_cast<Int>(b); ++key, scores += query_block<T>)
#pragma omp simd
    for (std::int64_t i = 0; i < query_block<T>; ++i)
      scores[i] = (limits.lower[i] <= key) & (key <= limits.upper[i]) ? scores[i] : -std::numeric_limits<T>::infinity();
}

// Scores become probabilities relative to the new maximum; factors: by which to scale the old sums.
template <class T>
void softmax_step(std::int64_t keys, T* __restrict scores, T* __restrict maximum, T* __restrict sum,
                  T* __restrict factors) {
  constexpr std::int64_t n = query_block<T>;
  alignas(64) T highest[n], total[n];
#pragma omp simd
  for (std::int64_t i = 0; i < n; ++i) highest[i] = maximum[i];
  for (std::int64_t j = 0; j < keys; ++j)
#pragma omp simd
    for (std::int64_t i = 0; i < n; ++i) highest[i] = scores[j * n + i] > highest[i] ? scores[j * n + i] : highest[i];
#pragma omp simd
  for (std::int64_t i = 0; i < n; ++i) {
    factors[i] = fast_exp_negative(maximum[i] - highest[i]);
    total[i] = sum[i] * factors[i];
  }
  for (std::int64_t j = 0; j < keys; ++j)
#pragma omp simd
    for (std::int64_t i = 0; i < n; ++i) {
      const T p = fast_exp_negative(scores[j * n + i] - highest[i]);
      scores[j * n + i] = p;
      total[i] += p;
    }
#pragma omp simd
  for (std::int64_t i = 0; i < n; ++i) {
    maximum[i] = highest[i];
    sum[i] = total[i];
  }
}

// Arithmetic in T, queries, keys and values in S, results in O.
template <class T, class S, class O = S>
class Forward {
 public:
  Forward(const AttentionShape& shape, std::int64_t kv_head, const Span& span, std::int64_t query)
      : shape_(shape),
        x_(shape.x),
        kv_head_(kv_head),
        span_(span),
        query_(query),
        blocks_(std::min(blocks_at_once(shape), (span.end - query + block - 1) / block)),
        columns_(shape.group * blocks_),
        value_room_(round_up(x_.value_dim, tile_rows)) {
    Carver count(nullptr);
    carve(count);
    Carver carver(thread_scratch(ScratchUse::left, count.used()));
    carve(carver);
  }

  static std::int64_t blocks_at_once(const AttentionShape& shape) {
    return std::max<std::int64_t>(columns_at_once / (block * shape.group), 1);
  }

  void run() {
    start();
    std::int64_t first = limits_[0].first, last = -1;
    for (std::int64_t b = 0; b < blocks_; ++b) {
      first = std::min(first, limits_[b].first);
      last = std::max(last, limits_[b].last);
    }
    const S* k = head_of<S>(x_.k, kv_head_, x_.dim);
    const S* v = head_of<S>(x_.v, kv_head_, x_.value_dim);
    for (std::int64_t key = span_.begin + (first - span_.begin) / key_block * key_block; key <= last;
         key += key_block) {
      const std::int64_t count = std::min(key_block, last + 1 - key);
      pack_rows<tile_rows>(k, x_.k.stride, key, count, x_.dim, keys_);
      pack_columns<tile_rows>(v, x_.v.stride, key, count, x_.value_dim, key_block, values_);
      for (std::int64_t column = 0; column < columns_; ++column) step(column, key, count);
    }
    finish();
  }

 private:
  static constexpr std::int64_t block = query_block<T>;

  void carve(Carver& carver) {
    queries_ = carver.take<T>(columns_ * x_.dim * block);
    outputs_ = carver.take<T>(columns_ * value_room_ * block);
    maximum_ = carver.take<T>(columns_ * block);
    sum_ = carver.take<T>(columns_ * block);
    keys_ = carver.take<T>(key_block * x_.dim);
    values_ = carver.take<T>(key_block * value_room_);
    scores_ = carver.take<T>(key_block * block);
    limits_ = carver.take<BlockLimits<T>>(blocks_);
  }

  // Column c is block c % blocks_ of the queries, of head c / blocks_ of those that share the keys.
  std::int64_t head(std::int64_t column) const { return kv_head_ * shape_.group + column / blocks_; }
  std::int64_t token(std::int64_t column) const { return query_ + column % blocks_ * block; }

  void start() {
    for (std::int64_t b = 0; b < blocks_; ++b) limits_[b].set(shape_.limits, query_ + b * block, span_.end);
    const T scale = static_cast<T>(x_.scale);
    for (std::int64_t c = 0; c < columns_; ++c) {
      T* packed = queries_ + c * x_.dim * block;
      pack_rows<query_block<T>>(head_of<S>(x_.q, head(c), x_.dim), x_.q.stride, token(c), limits_[c % blocks_].count,
                                x_.dim, packed);
      for (std::int64_t i = 0; i < x_.dim * block; ++i) packed[i] *= scale;
      // A sink is a key without a value that every query has seen already.
      const bool sink = x_.sinks.given();
      for (std::int64_t i = c * block; i < (c + 1) * block; ++i) {
        maximum_[i] = sink ? static_cast<T>(shape_.sink(head(c))) : lowest<T>;
        sum_[i] = sink ? T{1} : T{0};
      }
    }
    std::fill_n(outputs_, columns_ * value_room_ * block, T{0});
    if (shape_.store == Store::add) go_on();
  }

  // From results over other keys: together they are like one key, whose score is their lse.
  void go_on() {
    for (std::int64_t c = 0; c < columns_; ++c) {
      const std::int64_t count = limits_[c % blocks_].count;
      const T* lse = row<T>(x_.lse, head(c)) + token(c);
      for (std::int64_t i = 0; i < count; ++i) {
        if (!(lse[i] > lowest<T>)) continue;
        maximum_[c * block + i] = lse[i];
        sum_[c * block + i] = 1;
      }
      pack_rows<query_block<T>>(head_of<O>(x_.out, head(c), x_.value_dim), x_.out.stride, token(c), count, x_.value_dim,
                                outputs_ + c * value_room_ * block);
    }
  }

  void step(std::int64_t column, std::int64_t key, std::int64_t count) {
    const BlockLimits<T>& limits = limits_[column % blocks_];
    const std::int64_t begin = std::max<std::int64_t>(limits.first - key, 0) / tile_rows * tile_rows;
    const std::int64_t end = std::min(limits.last + 1 - key, count);
    if (begin >= end) return;
    const T* queries = queries_ + column * x_.dim * block;
    for (std::int64_t t = begin; t < end; t += tile_rows)
      micro_tile<T>(x_.dim, keys_ + t * x_.dim, queries, scores_ + t * block,
                    std::min<std::int64_t>(tile_rows, end - t));
    T* scores = scores_ + begin * block;
    if (key + begin < limits.all_first || key + end - 1 > limits.all_last)
      mask_scores(limits, key + begin, key + end, scores);
    alignas(64) T factors[block];
    softmax_step(end - begin, scores, maximum_ + column * block, sum_ + column * block, factors);
    T* outputs = outputs_ + column * value_room_ * block;
    for (std::int64_t d = 0; d < x_.value_dim; d += tile_rows)
      micro_tile<T, Start::scaled_tile>(end - begin, values_ + d * key_block + begin * tile_rows, scores,
                                        outputs + d * block, std::min<std::int64_t>(tile_rows, x_.value_dim - d),
                                        factors);
  }

  void finish() {
    for (std::int64_t c = 0; c < columns_; ++c) {
      const std::int64_t count = limits_[c % blocks_].count;
      T* lse = row<T>(x_.lse, head(c)) + token(c);
      alignas(64) T inverse[block];
      for (std::int64_t i = 0; i < block; ++i) {
        const T sum = sum_[c * block + i];  // 0: of a block of which the query sees no key
        inverse[i] = i < count && sum > 0 ? T{1} / sum : T{0};
        if (i < count) lse[i] = sum > 0 ? maximum_[c * block + i] + fast_log(sum) : -std::numeric_limits<T>::infinity();
      }
      unpack_rows(outputs_ + c * value_room_ * block, inverse, count, x_.value_dim,
                  head_of<O>(x_.out, head(c), x_.value_dim) + token(c) * x_.out.stride, x_.out.stride);
    }
  }

  const AttentionShape& shape_;
  const Attention& x_;
  std::int64_t kv_head_;
  Span span_;
  std::int64_t query_, blocks_, columns_, value_room_;
  T *queries_, *outputs_, *maximum_, *sum_, *keys_, *values_, *scores_;
  BlockLimits<T>* limits_;
};

template <class T, class S, class O = S>
void run(Stream& stream, const AttentionShape& shape) {
  // A task is (span, queries of one turn, kv head); who takes which does not matter, their results are their own.
  const std::int64_t turn = Forward<T, S, O>::blocks_at_once(shape) * query_block<T>;
  std::int64_t tasks = 0;
  for (std::int64_t s = 0; s < shape.span_count; ++s)
    tasks += (shape.spans[s].end - shape.spans[s].begin + turn - 1) / turn * shape.x.kv_heads;
  std::atomic<std::int64_t> next{0};
  const auto work = [&](int) {
    std::int64_t s = shape.span_count - 1, base = 0;  // from the last on: later queries see more keys
    for (std::int64_t task = next++; task < tasks; task = next++) {
      const auto turns = [&] { return (shape.spans[s].end - shape.spans[s].begin + turn - 1) / turn; };
      while (task - base >= turns() * shape.x.kv_heads) base += turns() * shape.x.kv_heads, --s;
      const std::int64_t which = turns() - 1 - (task - base) / shape.x.kv_heads;
      Forward<T, S, O>(shape, (task - base) % shape.x.kv_heads, shape.spans[s], shape.spans[s].begin + which * turn)
          .run();
    }
  };
  if (tasks == 1 || team_of(stream).size() == 1) return work(0);
  team_of(stream).run(std::cref(work));
}

}  // namespace

void attention(Stream& stream, const Attention& op) {
  if (op.q.rows() == 0) return;
  check_arguments("attention", op);
  const AttentionShape shape(op);
  with_storage("attention", op.q.dtype, [&](auto type) {
    using S = typename decltype(type)::type;
    run<Accumulator<S>, S>(stream, shape);
  });
}

void attention_block(Stream& stream, const AttentionBlock& op) {
  if (op.q.rows() == 0) return;
  check_arguments("attention_block", op);
  Attention all;
  all.q = op.q, all.k = op.k, all.v = op.v, all.out = op.out, all.lse = op.lse, all.sinks = op.sinks;
  all.heads = op.heads, all.kv_heads = op.kv_heads, all.dim = op.dim, all.value_dim = op.value_dim;
  all.scale = op.scale;
  const AttentionShape shape(all, op);
  with_storage("attention_block", op.q.dtype, [&](auto type) {
    using S = typename decltype(type)::type;
    run<Accumulator<S>, S, Accumulator<S>>(stream, shape);
  });
}

}  // namespace weft::WEFT_ISA
