// Causal attention, backward. With p = exp(score - lse), delta = dout . out and ds = p (dout . v - delta):
//   dv += p^T dout,  dk += scale ds^T q,  dq += scale ds k,  dsink = -sum of exp(sink - lse) delta
// A task owns one kv head of one span: it walks over turns of queries, for each over the blocks of keys they see, adds
// up dk and dv of the whole span beside it and dq of the turn. Where there are fewer such tasks than threads, dk and dv
// are computed by tasks that own some of the keys, and dq by tasks that own some of the queries, which repeats the
// scores (7 products instead of 5) but adds up everything in the same order: bits do not depend on the team.
// Scratch of a thread: keys of a task * (dim + value_dim) elements, and blocks of a few hundred KiB.
#include <atomic>

#include "weft/device/argument_checks_block.h"
#include "weft/device/cpu/kernels/attention_blocks.h"
#include "weft/device/operations/attention.h"

namespace weft::WEFT_ISA {

namespace {

struct Task {
  std::int64_t kv_head;
  Span span, keys, queries;  // keys and queries begin at blocks and turns of the span
  bool want_keys, want_queries;
};

// Scores become p, and d_scores (so far dout . v) become ds. Rows are keys [a, b).
template <bool masked, class T>
void to_gradients(const BlockLimits<T>& limits, std::int64_t a, std::int64_t b, const T* __restrict lse,
                  const T* __restrict delta, T* __restrict scores, T* __restrict d_scores) {
  using Int = typename BlockLimits<T>::Int;
  constexpr std::int64_t n = query_block<T>;
  for (Int key = static_cast<Int>(a); key < static_cast<Int>(b); ++key, scores += n, d_scores += n)
#pragma omp simd
    for (std::int64_t i = 0; i < n; ++i) {
      T p = fast_exp_negative(scores[i] - lse[i]);
      if (masked) p = (limits.lower[i] <= key) & (key <= limits.upper[i]) ? p : T{0};
      scores[i] = p;
      d_scores[i] = p * (d_scores[i] - delta[i]);
    }
}

// Arithmetic in T, queries, keys and values in S, their gradients in O.
template <class T, class S, class O = S>
class Backward {
 public:
  Backward(const AttentionShape& shape, const AttentionBackward& op, const Task& task)
      : shape_(shape),
        op_(op),
        x_(shape.x),
        task_(task),
        blocks_(blocks_at_once(shape)),
        columns_(shape.group * blocks_),
        dim_room_(round_up(x_.dim, tile_rows)),
        dim_panels_((x_.dim + block - 1) / block),
        value_panels_((x_.value_dim + block - 1) / block),
        key_tiles_((task.keys.end - task.keys.begin + tile_rows - 1) / tile_rows) {
    Carver count(nullptr);
    carve(count);
    Carver carver(thread_scratch(ScratchUse::left, count.used()));
    carve(carver);
  }

  static std::int64_t blocks_at_once(const AttentionShape& shape) {
    return std::max<std::int64_t>(columns_at_once / (block * shape.group), 1);
  }
  static std::int64_t turn(const AttentionShape& shape) { return blocks_at_once(shape) * block; }

  void run() {
    if (task_.want_keys) {
      std::fill_n(dk_, key_tiles_ * dim_panels_ * tile, T{0});
      std::fill_n(dv_, key_tiles_ * value_panels_ * tile, T{0});
    }
    for (query_ = task_.queries.begin; query_ < task_.queries.end; query_ += blocks_ * block) {
      used_ = std::min(blocks_, (task_.span.end - query_ + block - 1) / block);
      std::int64_t first = std::numeric_limits<std::int64_t>::max(), last = -1;
      for (std::int64_t b = 0; b < used_; ++b) {
        limits_[b].set(shape_.limits, query_ + b * block, task_.span.end);
        first = std::min(first, limits_[b].first);
        last = std::max(last, limits_[b].last);
      }
      first = std::max(first - task_.span.begin, task_.keys.begin - task_.span.begin) / key_block * key_block;
      last = std::min(last, task_.keys.end - 1);
      if (task_.span.begin + first > last) continue;
      start();
      for (std::int64_t key = task_.span.begin + first; key <= last; key += key_block)
        visit(key, std::min(key_block, last + 1 - key));
      if (task_.want_queries) store_queries();
    }
    if (task_.want_keys) {
      store_keys(dk_, dim_panels_, x_.dim, op_.dk);
      store_keys(dv_, value_panels_, x_.value_dim, op_.dv);
    }
  }

 private:
  static constexpr std::int64_t block = query_block<T>, tile = tile_rows * block;

  void carve(Carver& carver) {
    if (task_.want_keys) {
      dk_ = carver.take<T>(key_tiles_ * dim_panels_ * tile);
      dv_ = carver.take<T>(key_tiles_ * value_panels_ * tile);
      queries_down_ = carver.take<T>(columns_ * dim_panels_ * block * block);
      douts_down_ = carver.take<T>(columns_ * value_panels_ * block * block);
    }
    if (task_.want_queries) dq_ = carver.take<T>(columns_ * dim_room_ * block);
    queries_ = carver.take<T>(columns_ * x_.dim * block);
    douts_ = carver.take<T>(columns_ * x_.value_dim * block);
    lse_ = carver.take<T>(columns_ * block);
    delta_ = carver.take<T>(columns_ * block);
    keys_ = carver.take<T>(key_block * x_.dim);
    keys_down_ = carver.take<T>(key_block * dim_room_);
    values_ = carver.take<T>(key_block * x_.value_dim);
    scores_ = carver.take<T>(key_block * block);
    d_scores_ = carver.take<T>(key_block * block);
    limits_ = carver.take<BlockLimits<T>>(blocks_);
  }

  // Column c is block c % blocks_ of the turn, of head c / blocks_ of those that share the keys.
  std::int64_t head(std::int64_t column) const { return task_.kv_head * shape_.group + column / blocks_; }
  std::int64_t token(std::int64_t column) const { return query_ + column % blocks_ * block; }

  // Packs the queries of a turn: their rows for scores, and down the queries for dk and dv.
  void start() {
    const T scale = static_cast<T>(x_.scale);
    for (std::int64_t c = 0; c < columns_; ++c) {
      if (c % blocks_ >= used_) continue;
      const std::int64_t count = limits_[c % blocks_].count;
      const S* q = head_of<S>(x_.q, head(c), x_.dim);
      const S* dout = head_of<S>(op_.dout, head(c), x_.value_dim);
      T* queries = queries_ + c * x_.dim * block;
      pack_rows<query_block<T>>(q, x_.q.stride, token(c), count, x_.dim, queries);
      for (std::int64_t i = 0; i < x_.dim * block; ++i) queries[i] *= scale;
      pack_rows<query_block<T>>(dout, op_.dout.stride, token(c), count, x_.value_dim,
                                douts_ + c * x_.value_dim * block);
      if (task_.want_keys) {
        T* down = queries_down_ + c * dim_panels_ * block * block;
        pack_columns<query_block<T>>(q, x_.q.stride, token(c), count, x_.dim, block, down);
        for (std::int64_t i = 0; i < dim_panels_ * block * block; ++i) down[i] *= scale;
        pack_columns<query_block<T>>(dout, op_.dout.stride, token(c), count, x_.value_dim, block,
                                     douts_down_ + c * value_panels_ * block * block);
      }
      const T* lse = row<T>(x_.lse, head(c)) + token(c);
      const T* delta = row<T>(op_.scratch, head(c)) + token(c);
      for (std::int64_t i = 0; i < block; ++i) {
        lse_[c * block + i] = i < count ? lse[i] : T{0};
        delta_[c * block + i] = i < count ? delta[i] : T{0};
      }
    }
    if (task_.want_queries) std::fill_n(dq_, columns_ * dim_room_ * block, T{0});
  }

  void visit(std::int64_t key, std::int64_t count) {
    const S* k = head_of<S>(x_.k, task_.kv_head, x_.dim);
    const S* v = head_of<S>(x_.v, task_.kv_head, x_.value_dim);
    pack_rows<tile_rows>(k, x_.k.stride, key, count, x_.dim, keys_);
    pack_rows<tile_rows>(v, x_.v.stride, key, count, x_.value_dim, values_);
    if (task_.want_queries) pack_columns<tile_rows>(k, x_.k.stride, key, count, x_.dim, key_block, keys_down_);
    for (std::int64_t c = 0; c < columns_; ++c)
      if (c % blocks_ < used_) step(c, key, count);
  }

  void step(std::int64_t c, std::int64_t key, std::int64_t count) {
    const BlockLimits<T>& limits = limits_[c % blocks_];
    const std::int64_t begin = std::max<std::int64_t>(limits.first - key, 0) / tile_rows * tile_rows;
    const std::int64_t end = std::min(limits.last + 1 - key, count);
    if (begin >= end) return;
    for (std::int64_t t = begin; t < end; t += tile_rows) {
      const std::int64_t rows = std::min<std::int64_t>(tile_rows, end - t);
      micro_tile<T>(x_.dim, keys_ + t * x_.dim, queries_ + c * x_.dim * block, scores_ + t * block, rows);
      micro_tile<T>(x_.value_dim, values_ + t * x_.value_dim, douts_ + c * x_.value_dim * block, d_scores_ + t * block,
                    rows);
    }
    const bool masked = key + begin < limits.all_first || key + end - 1 > limits.all_last;
    const auto gradients = masked ? &to_gradients<true, T> : &to_gradients<false, T>;
    gradients(limits, key + begin, key + end, lse_ + c * block, delta_ + c * block, scores_ + begin * block,
              d_scores_ + begin * block);
    if (task_.want_queries)
      for (std::int64_t d = 0; d < x_.dim; d += tile_rows)
        micro_tile<T, Start::tile>(end - begin, keys_down_ + d * key_block + begin * tile_rows,
                                   d_scores_ + begin * block, dq_ + (c * dim_room_ + d) * block,
                                   std::min<std::int64_t>(tile_rows, x_.dim - d));
    if (task_.want_keys)
      for (std::int64_t t = begin; t < end; t += tile_rows) {
        const std::int64_t at = (key - task_.keys.begin + t) / tile_rows,
                           rows = std::min<std::int64_t>(tile_rows, end - t);
        add_keys(scores_ + t * block, rows, limits.count, douts_down_ + c * value_panels_ * block * block,
                 value_panels_, dv_ + at * value_panels_ * tile);
        add_keys(d_scores_ + t * block, rows, limits.count, queries_down_ + c * dim_panels_ * block * block,
                 dim_panels_, dk_ + at * dim_panels_ * tile);
      }
  }

  // sums [panels][tile] += weights [rows][block]^T, turned, times down [panels][block][block], over `count` queries.
  void add_keys(const T* weights, std::int64_t rows, std::int64_t count, const T* down, std::int64_t panels, T* sums) {
    alignas(64) T turned[tile + pack_slack<T>];
    pack_panel<tile_rows>(Operand<T>{weights, block, true}, 0, count, 0, rows, turned);
    for (std::int64_t p = 0; p < panels; ++p)
      micro_tile<T, Start::tile>(count, turned, down + p * block * block, sums + p * tile, tile_rows);
  }

  void store_queries() {
    alignas(64) T scale[block];
    std::fill_n(scale, block, static_cast<T>(x_.scale));
    for (std::int64_t c = 0; c < columns_; ++c)
      if (c % blocks_ < used_) {
        const T* from = dq_ + c * dim_room_ * block;
        O* to = head_of<O>(op_.dq, head(c), x_.dim) + token(c) * op_.dq.stride;
        const std::int64_t count = limits_[c % blocks_].count;
        if constexpr (std::is_same_v<O, T>)
          if (shape_.store_queries == Store::add) {
            unpack_rows<true>(from, scale, count, x_.dim, to, op_.dq.stride);
            continue;
          }
        unpack_rows(from, scale, count, x_.dim, to, op_.dq.stride);
      }
  }

  void store_keys(const T* sums, std::int64_t panels, std::int64_t dim, const Tensor& to) {
    for (std::int64_t key = task_.keys.begin; key < task_.keys.end; ++key) {
      const std::int64_t t = (key - task_.keys.begin) / tile_rows, r = (key - task_.keys.begin) % tile_rows;
      O* at = head_of<O>(to, task_.kv_head, dim) + key * to.stride;
      for (std::int64_t p = 0; p < panels; ++p) {
        const T* from = sums + (t * panels + p) * tile + r * block;
        const std::int64_t width = std::min(block, dim - p * block);
        if (shape_.store_keys == Store::add)
          for (std::int64_t d = 0; d < width; ++d)
            at[p * block + d] = narrow<O>(widen_to<T>(at[p * block + d]) + from[d]);
        else
          for (std::int64_t d = 0; d < width; ++d) at[p * block + d] = narrow<O>(from[d]);
      }
    }
  }

  const AttentionShape& shape_;
  const AttentionBackward& op_;
  const Attention& x_;
  Task task_;
  std::int64_t blocks_, columns_, dim_room_, dim_panels_, value_panels_, key_tiles_;
  std::int64_t query_ = 0, used_ = 0;  // of this turn: its first token, its blocks
  T *dk_ = nullptr, *dv_ = nullptr, *dq_ = nullptr, *queries_down_ = nullptr, *douts_down_ = nullptr;
  T *queries_, *douts_, *lse_, *delta_, *keys_, *keys_down_, *values_, *scores_, *d_scores_;
  BlockLimits<T>* limits_;
};

// delta [heads, T] = dout . out
template <class T, class O, class S>
void compute_delta(Stream& stream, const Tensor& all_out, const Tensor& all_dout, const Tensor& delta,
                   std::int64_t value_dim) {
  const std::int64_t heads = delta.rows();
  split_rows(stream, all_out.rows(), heads * value_dim, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t t = begin; t < end; ++t)
      for (std::int64_t h = 0; h < heads; ++h) {
        const O* out = row<O>(all_out, t) + h * value_dim;
        const S* dout = row<S>(all_dout, t) + h * value_dim;
        T sum = 0;
#pragma omp simd reduction(+ : sum)
        for (std::int64_t d = 0; d < value_dim; ++d) sum += widen_to<T>(out[d]) * widen_to<T>(dout[d]);
        row<T>(delta, h)[t] = sum;
      }
  });
}

template <class T>
void compute_dsink(const Tensor& all_lse, const Tensor& all_delta, double sink, std::int64_t head,
                   const Tensor& dsinks) {
  const T* lse = row<T>(all_lse, head);
  const T* delta = row<T>(all_delta, head);
  double sum = 0;  // over all tokens: in double, for its length
  for (std::int64_t t = 0; t < all_lse.columns(); ++t)
    sum += static_cast<double>(fast_exp_negative(static_cast<T>(sink) - lse[t]) * delta[t]);
  static_cast<T*>(dsinks.data)[head] = static_cast<T>(-sum);
}

// All tasks in a fixed order, made on the fly: visit(task) until it returns false.
template <class Visit>
void for_each_task(const AttentionShape& shape, bool whole, std::int64_t turn, const Visit& visit) {
  for (std::int64_t s = 0; s < shape.span_count; ++s) {
    const Span& span = shape.spans[s];
    const Span keys = shape.blocks ? Span{0, shape.x.k.rows()} : span;
    for (std::int64_t h = 0; h < shape.x.kv_heads; ++h) {
      if (whole) {
        visit(Task{h, span, keys, span, true, true});
        continue;
      }
      const std::int64_t step = round_up(256, key_block);
      for (std::int64_t key = keys.begin; key < keys.end; key += step) {
        // No query before `first` sees these keys.
        const std::int64_t first = shape.blocks ? 0 : span.begin + (key - span.begin) / turn * turn;
        visit(Task{h, span, {key, std::min(key + step, keys.end)}, {first, span.end}, true, false});
      }
      for (std::int64_t query = span.begin; query < span.end; query += turn)
        visit(Task{h, span, keys, {query, std::min(query + turn, span.end)}, false, true});
    }
  }
}

// Whether one task per span and kv head is the faster way: tasks are taken as they come, and the largest may be last.
bool whole_spans(const AttentionShape& shape, int threads) {
  double total = 0, largest = 0;
  for (std::int64_t s = 0; s < shape.span_count; ++s) {
    const double size = static_cast<double>(shape.spans[s].end - shape.spans[s].begin);
    total += size * size;
    largest = std::max(largest, size * size);
  }
  total *= static_cast<double>(shape.x.kv_heads);
  const std::int64_t tasks = shape.span_count * shape.x.kv_heads;
  const double turns = static_cast<double>((tasks + threads - 1) / threads);
  return std::max(largest, turns * total / static_cast<double>(tasks)) <= 1.4 * total / threads;
}

template <class T, class S, class O = S>
void run(Stream& stream, const AttentionShape& shape, const AttentionBackward& op) {
  Team& team = team_of(stream);
  const bool whole = whole_spans(shape, team.size());
  const std::int64_t turn = Backward<T, S, O>::turn(shape);
  std::atomic<std::int64_t> next{0};
  const auto work = [&](int) {
    std::int64_t mine = next++, at = 0;
    const auto turn_to = [&](const auto& task) {
      if (at++ != mine) return;
      task();
      mine = next++;
    };
    for_each_task(shape, whole, turn,
                  [&](const Task& task) { turn_to([&] { Backward<T, S, O>(shape, op, task).run(); }); });
    if (op.dsinks.given())
      for (std::int64_t h = 0; h < shape.x.heads; ++h)
        turn_to([&] { compute_dsink<T>(shape.x.lse, op.scratch, shape.sink(h), h, op.dsinks); });
  };
  if (team.size() == 1) return work(0);
  team.run(std::cref(work));
}

}  // namespace

void attention_backward(Stream& stream, const AttentionBackward& op) {
  const Attention& x = op.forward;
  if (x.q.rows() == 0) return;
  check_arguments("attention_backward", op);
  const AttentionShape shape(x);
  with_storage("attention_backward", x.q.dtype, [&](auto type) {
    using S = typename decltype(type)::type;
    using T = Accumulator<S>;
    compute_delta<T, S, S>(stream, x.out, op.dout, op.scratch, x.value_dim);
    run<T, S>(stream, shape, op);
  });
}

void attention_delta(Stream& stream, const AttentionDelta& op) {
  constexpr const char* name = "attention_delta";
  if (op.out.rows() == 0) return;
  check_arguments(name, op);
  with_storage(name, op.dout.dtype, [&](auto type) {
    using S = typename decltype(type)::type;
    using T = Accumulator<S>;
    if (op.out.dtype == op.dout.dtype)
      compute_delta<T, S, S>(stream, op.out, op.dout, op.delta, op.value_dim);
    else
      compute_delta<T, T, S>(stream, op.out, op.dout, op.delta, op.value_dim);
    if (!op.dsinks.given()) return;
    for (std::int64_t h = 0; h < op.heads; ++h) compute_dsink<T>(op.lse, op.delta, sink_of(op.sinks, h), h, op.dsinks);
  });
}

void attention_block_backward(Stream& stream, const AttentionBlockBackward& op) {
  constexpr const char* name = "attention_block_backward";
  const AttentionBlock& x = op.forward;
  if (x.q.rows() == 0) return;
  check_arguments(name, op);
  Attention all;
  all.q = x.q, all.k = x.k, all.v = x.v, all.lse = x.lse;
  all.heads = x.heads, all.kv_heads = x.kv_heads, all.dim = x.dim, all.value_dim = x.value_dim, all.scale = x.scale;
  AttentionShape shape(all, x);
  shape.store_queries = op.store_queries;
  shape.store_keys = op.store_keys;
  AttentionBackward gradients{all, op.dout, op.dq, op.dk, op.dv};
  gradients.scratch = op.delta;
  with_storage(name, x.q.dtype, [&](auto type) {
    using S = typename decltype(type)::type;
    run<Accumulator<S>, S, Accumulator<S>>(stream, shape, gradients);
  });
}

}  // namespace weft::WEFT_ISA
