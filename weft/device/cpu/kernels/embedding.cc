// embedding and its gradient, and tokens' places in a split vocabulary. A negative token has no row: zeros, and no gradient (a split vocabulary's foreign
// tokens).
#include <array>

#include "weft/device/argument_checks.h"
#include "weft/device/cpu/kernels/dispatch.h"
#include "weft/device/operations/loss.h"

namespace weft::WEFT_ISA {

namespace {

using Key = std::uint64_t;  // token in the high half, index in the low one

// Sorts by the high half, stably: eight bits at a time, as many as the vocabulary has. Returns where the result is.
Key* sort_by_token(Key* keys, Key* other, std::int64_t count, std::int64_t vocabulary) {
  for (int shift = 32; shift < 64 && (vocabulary - 1) >> (shift - 32) != 0; shift += 8) {
    std::array<std::int64_t, 257> begin{};
    for (std::int64_t i = 0; i < count; ++i) ++begin[(keys[i] >> shift & 255) + 1];
    for (std::size_t digit = 0; digit < 256; ++digit) begin[digit + 1] += begin[digit];
    for (std::int64_t i = 0; i < count; ++i) other[begin[keys[i] >> shift & 255]++] = keys[i];
    std::swap(keys, other);
  }
  return keys;
}

// Columns [c0, c1) of dweight: every token's rows are added up first, in their order, and stored once.
template <class T, class G>
void add_columns(const EmbeddingGradient& op, const Key* keys, std::int64_t count, std::int64_t c0, std::int64_t c1) {
  using Acc = Accumulator<T>;
  constexpr std::int64_t block = 1024;
  std::array<Acc, block> sums;
  const auto zero_rows = [&](std::int64_t first, std::int64_t last) {
    for (std::int64_t v = first; v < last; ++v) clear(row<G>(op.dweight, v) + c0, c1 - c0);
  };
  std::int64_t done = 0;  // vocabulary rows before this one are finished
  for (std::int64_t i = 0; i < count;) {
    const std::int64_t token = static_cast<std::int64_t>(keys[i] >> 32);
    std::int64_t end = i + 1;
    while (end < count && static_cast<std::int64_t>(keys[end] >> 32) == token) ++end;
    if (op.store == Store::write) zero_rows(done, token);
    done = token + 1;
    for (std::int64_t b0 = c0; b0 < c1; b0 += block) {
      const std::int64_t columns = std::min(b0 + block, c1) - b0;
      clear(sums.data(), columns);
      for (std::int64_t j = i; j < end; ++j) {
        const T* dy = row<T>(op.dy, static_cast<std::int64_t>(keys[j] & 0xffffffffu)) + b0;
#pragma omp simd
        for (std::int64_t c = 0; c < columns; ++c) sums[static_cast<std::size_t>(c)] += widen(dy[c]);
      }
      G* dweight = row<G>(op.dweight, token) + b0;
      if (op.store == Store::add) {
#pragma omp simd
        for (std::int64_t c = 0; c < columns; ++c)
          dweight[c] = narrow<G>(widen_to<Acc>(dweight[c]) + sums[static_cast<std::size_t>(c)]);
      } else {
#pragma omp simd
        for (std::int64_t c = 0; c < columns; ++c) dweight[c] = narrow<G>(sums[static_cast<std::size_t>(c)]);
      }
    }
    i = end;
  }
  if (op.store == Store::write) zero_rows(done, op.dweight.rows());
}

}  // namespace

void embedding(Stream& stream, const Embedding& op) {
  check_arguments("embedding", op);
  const std::int64_t rows = op.y.rows(), columns = columns_of(op.y);
  if (rows == 0) return;
  const std::int32_t* tokens = op.tokens.as<std::int32_t>();
  with_storage_and("embedding", op.weight.dtype, op.y.dtype, [&](auto w, auto t) {
    using W = typename decltype(w)::type;
    using Y = typename decltype(t)::type;
    split_rows(stream, rows, columns, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t r = begin; r < end; ++r) {
        Y* y = row<Y>(op.y, r);
        if (tokens[r] < 0) {
          clear(y, columns);
          continue;
        }
        require(tokens[r] < op.weight.rows(), "embedding", "a token beyond the vocabulary");
        const W* weight = row<W>(op.weight, tokens[r]);
#pragma omp simd
        for (std::int64_t c = 0; c < columns; ++c) y[c] = narrow<Y>(widen(weight[c]));
      }
    });
  });
}

// Every thread takes some columns of all tokens: tokens differ in how often they occur, columns do not.
void embedding_gradient(Stream& stream, const EmbeddingGradient& op) {
  constexpr const char* name = "embedding_gradient";
  const std::int64_t tokens = op.tokens.shape.elements(), vocabulary = op.dweight.rows();
  const std::int64_t columns = columns_of(op.dweight);
  check_arguments(name, op);
  Key* keys = static_cast<Key*>(thread_scratch(2 * static_cast<std::size_t>(tokens) * sizeof(Key)));
  std::int64_t count = 0;
  for (std::int64_t t = 0; t < tokens; ++t) {
    const std::int32_t token = op.tokens.as<std::int32_t>()[t];
    require(token < vocabulary, name, "a token beyond the vocabulary");
    if (token >= 0) keys[count++] = static_cast<Key>(token) << 32 | static_cast<Key>(t);
  }
  const Key* sorted = sort_by_token(keys, keys + tokens, count, vocabulary);
  constexpr std::int64_t unit = 32;
  const std::int64_t units = (columns + unit - 1) / unit;
  const std::int64_t elements_per_unit = unit * (tokens + (op.store == Store::write ? vocabulary : 0));
  with_storage_and(name, op.dy.dtype, op.dweight.dtype, [&](auto t, auto g) {
    using T = typename decltype(t)::type;
    using G = typename decltype(g)::type;
    split_rows(stream, units, elements_per_unit, [&](std::int64_t begin, std::int64_t end) {
      add_columns<T, G>(op, sorted, count, begin * unit, std::min(end * unit, columns));
    });
  });
}

void local_tokens(Stream& stream, const LocalTokens& op) {
  check_arguments("local_tokens", op);
  const std::int32_t* tokens = op.tokens.as<std::int32_t>();
  std::int32_t* y = op.y.as<std::int32_t>();
  split_elements(stream, op.tokens.shape.elements(), [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t t = begin; t < end; ++t) {
      const std::int64_t local = tokens[t] - op.first;
      y[t] = local >= 0 && local < op.count ? static_cast<std::int32_t>(local) : -1;
    }
  });
}

void shift(Stream& stream, const Shift& op) {
  constexpr const char* name = "shift";
  check_arguments(name, op);
  const std::int64_t tokens = op.x.shape.elements();
  const std::int32_t* boundaries = optional<std::int32_t>(op.boundaries);
  const std::int32_t* x = op.x.as<std::int32_t>();
  std::int32_t* y = op.y.as<std::int32_t>();
  split_elements(stream, tokens, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t t = begin; t < end; ++t) {
      const std::int64_t from = t + op.by;
      const bool together = from < tokens && (boundaries != nullptr ? boundaries[from] == boundaries[t]
                                                                    : from / op.length == t / op.length);
      y[t] = together ? x[from] : op.fill;
    }
  });
}

}  // namespace weft::WEFT_ISA
