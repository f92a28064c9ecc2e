// The innermost product, and the packing that feeds it.
//
// A tile of the result has `tile_rows` x `tile_columns` elements, kept in registers. Its left operand is packed as
// [k][tile_rows], its right one as [k][tile_columns], zero-filled at the edges, converted to T. Every element is the
// sum over k in ascending order, whatever the tile it falls into: bits do not depend on how a product is cut.
#pragma once

#include <algorithm>

#include "weft/device/cpu/kernels/simd.h"

namespace weft::WEFT_ISA {

// Rows x vectors of accumulators. Few rows and many vectors load least: 24 sums of 32 registers, 12 of 16, 8 of 16.
#if defined(__AVX512F__)
constexpr int tile_rows = 6, tile_vectors = 4;
#elif defined(__AVX2__)
constexpr int tile_rows = 6, tile_vectors = 2;
#else
constexpr int tile_rows = 4, tile_vectors = 2;
#endif
template <class T>
constexpr int tile_columns = tile_vectors* lanes<T>;
// Stores of whole vectors may run past the end of a packed operand by less than this.
template <class T>
constexpr int pack_slack = lanes<T>;

// Where a tile will be stored: fetched into the cache while the tile is computed. Rows of a result lie far apart, and
// no hardware fetches them in time.
struct Fetch {
  const std::byte* at = nullptr;
  std::int64_t stride = 0;  // bytes
};

// What a tile starts from: zeros; what is there; or that times a factor for each column.
enum class Start : std::uint8_t { zero, tile, scaled_tile };

// tile [tile_rows][tile_columns] = start + sum over k of a[k][i] b[k][j], for the first `rows` rows.
template <class T, int rows, Start start>
WEFT_INLINE void micro_tile_rows(std::int64_t k, const T* __restrict a, const T* __restrict b, T* __restrict tile,
                                 const T* __restrict factors, Fetch fetch) {
  using V = Vector<T>;
  V sums[rows][tile_vectors];
#pragma GCC unroll 8
  for (int i = 0; i < rows; ++i)
#pragma GCC unroll 4
    for (int j = 0; j < tile_vectors; ++j) {
      if constexpr (start == Start::zero)
        sums[i][j] = V{};
      else
        sums[i][j] = load<T>(tile + i * tile_columns<T> + j * lanes<T>);
      if constexpr (start == Start::scaled_tile) sums[i][j] *= load<T>(factors + j * lanes<T>);
    }
  const auto step = [&]() __attribute__((always_inline)) {
    V right[tile_vectors];
#pragma GCC unroll 4
    for (int j = 0; j < tile_vectors; ++j) right[j] = load<T>(b + j * lanes<T>);
#pragma GCC unroll 8
    for (int i = 0; i < rows; ++i)
#pragma GCC unroll 4
      for (int j = 0; j < tile_vectors; ++j) sums[i][j] += a[i] * right[j];
    a += tile_rows;
    b += tile_columns<T>;
  };
  std::int64_t p = 0;
  if (fetch.at != nullptr && k >= 8 * rows) {
    constexpr int lines = std::max(vector_bytes * tile_vectors / 64, 1);
    for (int i = 0; i < rows; ++i, fetch.at += fetch.stride, p += 8)
#pragma GCC unroll 8
      for (int q = 0; q < 8; ++q) {  // spread: a core can wait for a dozen lines at a time
        if (q % 2 == 0 && q / 2 < lines) __builtin_prefetch(fetch.at + q / 2 * 64, 1);
        step();
      }
  }
#pragma GCC unroll 4
  for (; p < k; ++p) step();
#pragma GCC unroll 8
  for (int i = 0; i < rows; ++i)
#pragma GCC unroll 4
    for (int j = 0; j < tile_vectors; ++j) store(tile + i * tile_columns<T> + j * lanes<T>, sums[i][j]);
}

// Rows past `rows`, up to tile_rows, may be written with anything.
template <class T, Start start = Start::zero>
[[gnu::noinline]] void micro_tile(std::int64_t k, const T* a, const T* b, T* tile, std::int64_t rows,
                                  const T* factors = nullptr, Fetch fetch = {}) {
  if constexpr (tile_rows > 4)
    if (rows > 4) return micro_tile_rows<T, tile_rows, start>(k, a, b, tile, factors, fetch);
  if (rows > 2) return micro_tile_rows<T, 4, start>(k, a, b, tile, factors, fetch);
  if (rows > 1) return micro_tile_rows<T, 2, start>(k, a, b, tile, factors, fetch);
  return micro_tile_rows<T, 1, start>(k, a, b, tile, factors, fetch);
}

// Where an element of an operand is: at(p, i) for the index p that is summed over and i that is not.
template <class S>
struct Operand {
  const S* data;
  std::int64_t stride;
  bool sum_contiguous;  // at(p, i) is data[i * stride + p], otherwise data[p * stride + i]
};

// packed[p][i] = source[p * p_step + i * i_step], zeros for i >= count: the edges.
template <int width, class T, class S>
inline void pack_edge(const S* source, std::int64_t p_step, std::int64_t i_step, std::int64_t k, std::int64_t count,
                      T* packed) {
  for (T* end = packed + k * width; packed != end; packed += width, source += p_step) {
    std::int64_t i = 0;
    for (; i < count; ++i) packed[i] = widen_to<T>(source[i * i_step]);
    for (; i < width; ++i) packed[i] = T{};
  }
}

// Packs `count` <= width values of i from i0, k values of p from p0: packed[p][i], zeros for i >= count.
template <int width, class T, class S>
inline void pack_panel(const Operand<S>& x, std::int64_t p0, std::int64_t k, std::int64_t i0, std::int64_t count,
                       T* __restrict packed) {
  constexpr int n = lanes<T>;
  const std::int64_t stride = x.stride;
  if (!x.sum_contiguous) {
    const S* source = x.data + p0 * stride + i0;
    if (count < width) return pack_edge<width>(source, stride, 1, k, count, packed);
    for (std::int64_t p = 0; p < k; ++p) copy_fixed<width>(source + p * stride, packed + p * width);
    return;
  }
  const S* source = x.data + i0 * stride + p0;
  const std::int64_t whole = k / n * n;
  for (std::int64_t p = 0; p < whole; p += n) {
    // Last block first: what a vector stores past the width is overwritten by what follows.
#pragma GCC unroll 4
    for (int block = (width - 1) / n * n; block >= 0; block -= n) {
      Vector<T> rows[n];
#pragma GCC unroll 16
      for (int i = 0; i < n; ++i)
        rows[i] = block + i < width && block + i < count ? load<T>(source + (block + i) * stride + p) : Vector<T>{};
      transpose(rows);
#pragma GCC unroll 16
      for (int i = 0; i < n; ++i) store(packed + (p + i) * width + block, rows[i]);
    }
  }
  if (whole < k) pack_edge<width>(source + whole, 1, stride, k - whole, count, packed + whole * width);
}

}  // namespace weft::WEFT_ISA
