// What attention's forward and backward share.
//
// Scores are kept transposed, [keys][queries]: a block holds `query_block` queries side by side in vector registers, so
// the softmax runs down the keys without any sum across lanes, and a block of probabilities is already packed for the
// next product (micro_gemm.h). All blocks begin at fixed places, so bits do not depend on threads.
#pragma once

#include <type_traits>

#include "weft/device/argument_checks.h"
#include "weft/device/cpu/kernels/carver.h"
#include "weft/device/cpu/kernels/dispatch.h"
#include "weft/device/cpu/kernels/micro_gemm.h"
#include "weft/device/operations/attention_block.h"

namespace weft::WEFT_ISA {

template <class T>
constexpr std::int64_t query_block = tile_columns<T>;
constexpr std::int64_t key_block = 96;  // a multiple of every tile_rows
static_assert(key_block % tile_rows == 0);
// Queries (times heads that share keys) for which a block of keys is packed once.
constexpr std::int64_t columns_at_once = 256;
// Short documents are handled together, up to this many tokens.
constexpr std::int64_t span_goal = 512;

inline std::int64_t round_up(std::int64_t x, std::int64_t step) { return (x + step - 1) / step * step; }

// Consecutive documents: no token attends to one outside its span.
struct Span {
  std::int64_t begin = 0, end = 0;
};

// Which keys a query sees: [lower(t), upper(t)].
struct Limits {
  const std::int32_t* boundaries;  // null: sequences of `length`
  std::int64_t length, window;
  const std::int32_t *firsts = nullptr, *ends = nullptr;  // given: keys have numbers of their own

  std::int64_t document(std::int64_t t) const { return boundaries != nullptr ? boundaries[t] : t - t % length; }
  std::int64_t upper(std::int64_t t) const { return ends != nullptr ? ends[t] - 1 : t; }
  std::int64_t lower(std::int64_t t) const {
    if (firsts != nullptr) return firsts[t];
    const std::int64_t begin = document(t);
    return window > 0 && t - window + 1 > begin ? t - window + 1 : begin;
  }
};

// The keys a block of queries sees. Queries past the end of the span see none.
template <class T>
struct BlockLimits {
  using Int = std::conditional_t<sizeof(T) == 8, std::int64_t, std::int32_t>;
  Int lower[query_block<T>], upper[query_block<T>];
  std::int64_t first, last;          // keys that any query sees: [first, last]
  std::int64_t all_first, all_last;  // keys that every query sees, if all queries exist
  std::int64_t count;                // queries that exist

  void set(const Limits& limits, std::int64_t query, std::int64_t end) {
    count = std::min(query_block<T>, end - query);
    first = limits.lower(query);
    last = limits.upper(query);
    all_first = 0;
    all_last = count == query_block<T> ? last : -1;
    for (std::int64_t i = 0; i < query_block<T>; ++i) {
      const std::int64_t low = i < count ? limits.lower(query + i) : 1, high = i < count ? limits.upper(query + i) : 0;
      lower[i] = static_cast<Int>(low);
      upper[i] = static_cast<Int>(high);
      if (i < count) {
        first = std::min(first, low);
        last = std::max(last, high);
        all_first = std::max(all_first, low);
        all_last = std::min(all_last, high);
      }
    }
  }
};

inline double sink_of(const Tensor& sinks, std::int64_t head) {
  switch (sinks.dtype) {
    case DType::f64:
      return static_cast<const double*>(sinks.data)[head];
    case DType::bf16:
      return widen_to<double>(static_cast<const bfloat16*>(sinks.data)[head]);
    default:
      return widen_to<double>(static_cast<const float*>(sinks.data)[head]);
  }
}

// Finds the spans; arguments in the types of the loops.
struct AttentionShape {
  const Attention& x;
  Limits limits;
  bool blocks = false;  // of keys: out, dq, dk and dv are of the accumulator's type
  Store store = Store::write, store_queries = Store::write, store_keys = Store::write;
  std::int64_t tokens, group;  // group: heads that share a kv head
  Span* spans = nullptr;       // scratch of the calling thread
  std::int64_t span_count = 0;

  explicit AttentionShape(const Attention& op)
      : x(op),
        limits{optional<const std::int32_t>(op.boundaries), op.length, op.window},
        tokens(op.q.rows()),
        group(op.heads / op.kv_heads) {
    find_spans();
  }
  // Over one block of keys.
  AttentionShape(const Attention& op, const AttentionBlock& block)
      : x(op),
        limits{nullptr, 0, 0, block.first.as<std::int32_t>(), block.end.as<std::int32_t>()},
        blocks(true),
        store(block.store),
        tokens(op.q.rows()),
        group(op.heads / op.kv_heads),
        spans(reinterpret_cast<Span*>(thread_scratch(ScratchUse::plan, sizeof(Span)))),
        span_count(1) {
    spans[0] = {0, tokens};
  }

  double sink(std::int64_t head) const { return sink_of(x.sinks, head); }

 private:
  void find_spans() {
    // Any two neighbours together have more than span_goal tokens, or they would be one span.
    const std::int64_t bound = 2 * tokens / span_goal + 2;
    const auto bytes = static_cast<std::size_t>(bound) * sizeof(Span);
    spans = reinterpret_cast<Span*>(thread_scratch(ScratchUse::plan, bytes));
    std::int64_t begin = 0, document = 0;
    const auto close = [&](std::int64_t end) {
      spans[span_count++] = {begin, end};
      begin = end;
    };
    for (std::int64_t t = 0; t <= tokens; ++t) {
      const std::int64_t starts = t < tokens ? limits.document(t) : t;
      require(starts <= t && (starts == t || starts == document), "attention", "boundaries are not those of documents");
      if (starts != t || t == 0) continue;
      // The document [document, t) has ended. It joins those before it unless together they are too many.
      if (t - begin > span_goal && document > begin) close(document);
      if (t - begin >= span_goal || t == tokens) close(t);
      document = t;
    }
  }
};

// Columns of one head.
template <class S>
S* head_of(const Tensor& tensor, std::int64_t head, std::int64_t dim) {
  return static_cast<S*>(tensor.data) + head * dim;
}

// Packs `count` rows from `row` of x [.., width] as panels of `panel` rows each, [width][panel]: the rows are the
// outer index of a product whose sum runs along them.
template <int panel, class T, class S>
void pack_rows(const S* x, std::int64_t stride, std::int64_t row, std::int64_t count, std::int64_t width, T* packed) {
  const Operand<S> operand{x, stride, true};
  for (std::int64_t i = 0; i < count; i += panel)
    pack_panel<panel>(operand, 0, width, row + i, std::min<std::int64_t>(panel, count - i), packed + i * width);
}

// Packs the same rows for a product whose sum runs down them: panels of `panel` columns, [room][panel] each.
template <int panel, class T, class S>
void pack_columns(const S* x, std::int64_t stride, std::int64_t row, std::int64_t count, std::int64_t width,
                  std::int64_t room, T* packed) {
  const Operand<S> operand{x, stride, false};
  for (std::int64_t i = 0; i < width; i += panel)
    pack_panel<panel>(operand, row, count, i, std::min<std::int64_t>(panel, width - i), packed + i * room);
}

// to[i][d] (+)= from[d][i] * factors[i] for `count` rows i of `width` elements; from has rows of query_block elements.
template <bool adds = false, class T, class S>
void unpack_rows(const T* from, const T* factors, std::int64_t count, std::int64_t width, S* to, std::int64_t stride) {
  constexpr int n = lanes<T>;
  const std::int64_t whole = width / n * n;
  for (std::int64_t i = 0; i < count; i += n) {
    const Vector<T> factor = load<T>(factors + i);
    for (std::int64_t d = 0; d < whole; d += n) {
      Vector<T> rows[n];
#pragma GCC unroll 16
      for (int r = 0; r < n; ++r) rows[r] = load<T>(from + (d + r) * query_block<T> + i) * factor;
      transpose(rows);
#pragma GCC unroll 16
      for (int r = 0; r < n; ++r)
        if (i + r < count) {
          S* const at = to + (i + r) * stride + d;
          if constexpr (adds) rows[r] += load<T>(at);
          store_narrow(at, rows[r]);
        }
    }
    for (std::int64_t d = whole; d < width; ++d)
      for (std::int64_t r = i; r < std::min<std::int64_t>(i + n, count); ++r)
        to[r * stride + d] =
            narrow<S>(from[d * query_block<T> + r] * factors[r] + (adds ? widen_to<T>(to[r * stride + d]) : T{0}));
  }
}

}  // namespace weft::WEFT_ISA
