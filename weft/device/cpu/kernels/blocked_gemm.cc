#include "weft/device/cpu/kernels/blocked_gemm.h"

#include <algorithm>

#include "weft/device/cpu/kernels/load.h"
#include "weft/device/cpu/kernels/micro_gemm.h"
#include "weft/device/cpu/scratch.h"
#include "weft/device/refuse.h"

namespace weft::WEFT_ISA {

namespace {

// A block of a (m_block x k_block) and a panel of b (k_block x tile_columns) stay in the L2 cache, a block of b
// (k_block x n_block) in L3. Results that are rounded (bf16) are added up in m_span x n_block of scratch.
constexpr std::int64_t k_block_limit = 384;
constexpr std::int64_t m_block = 36 * tile_rows;
constexpr std::int64_t n_block = 1024;
constexpr std::int64_t m_span = 144 * tile_rows;

std::int64_t round_up(std::int64_t x, std::int64_t step) { return (x + step - 1) / step * step; }

// Equal blocks instead of a small last one; a function of k alone, for the sake of bits.
std::int64_t k_block_of(std::int64_t k) {
  const std::int64_t blocks = (k + k_block_limit - 1) / k_block_limit;
  return blocks <= 1 ? k : round_up((k + blocks - 1) / blocks, 16);
}

template <class T>
using Pack = void (*)(const Factor&, std::int64_t, std::int64_t, std::int64_t, std::int64_t, T*);

template <int width, class T, class S>
void pack(const Factor& x, std::int64_t p0, std::int64_t k, std::int64_t i0, std::int64_t count, T* packed) {
  const Operand<S> operand{static_cast<const S*>(x.data), x.stride, x.sum_contiguous};
  for (std::int64_t i = 0; i < count; i += width)
    pack_panel<width>(operand, p0, k, i0 + i, std::min<std::int64_t>(width, count - i), packed + i * k);
}

template <int width, class T>
Pack<T> pack_for(DType dtype) {
  switch (dtype) {
    case DType::f32:
      return &pack<width, T, float>;
    case DType::f64:
      return &pack<width, T, double>;
    case DType::bf16:
      return &pack<width, T, bfloat16>;
    default:
      refuse("matmul", "its factors need f32, f64 or bf16");
  }
}

// What is added to a finished tile: c = tile (+ before) (+ bias) (+ base), in T, rounded once.
template <class T>
struct Finish {
  const T* before = nullptr;   // sums of the earlier blocks of k, rows n_block apart
  const T* bias = nullptr;     // one per column
  const void* base = nullptr;  // of c's dtype: c itself or a residual
  std::int64_t base_stride = 0;
};

template <class T, class C>
WEFT_INLINE void finish_row(const T* tile, std::int64_t columns, C* c, const T* before, const T* bias, const C* base) {
#pragma omp simd
  for (std::int64_t j = 0; j < columns; ++j) {
    T x = tile[j];
    if (before != nullptr) x = before[j] + x;
    if (bias != nullptr) x += bias[j];
    if (base != nullptr) x = widen_to<T>(base[j]) + x;
    c[j] = narrow<C>(x);
  }
}

template <class T, class C>
void finish_tile(const T* tile, std::int64_t rows, std::int64_t columns, void* to, std::int64_t stride,
                 const Finish<T>& finish) {
  constexpr int width = tile_columns<T>;
  C* c = static_cast<C*>(to);
  const C* base = static_cast<const C*>(finish.base);
  const bool plain = columns == width && finish.before == nullptr && finish.bias == nullptr;
  for (std::int64_t i = 0; i < rows; ++i, tile += width, c += stride) {
    if (plain && base == nullptr) {
      finish_row<T, C>(tile, width, c, nullptr, nullptr, nullptr);
    } else if (plain) {
      finish_row<T, C>(tile, width, c, nullptr, nullptr, base + i * finish.base_stride);
    } else {
      finish_row<T, C>(tile, columns, c, finish.before != nullptr ? finish.before + i * n_block : nullptr, finish.bias,
                       base != nullptr ? base + i * finish.base_stride : nullptr);
    }
  }
}

template <class T>
using StoreTile = void (*)(const T*, std::int64_t, std::int64_t, void*, std::int64_t, const Finish<T>&);

template <class T>
StoreTile<T> store_for(DType dtype) {
  switch (dtype) {
    case DType::f32:
      return &finish_tile<T, float>;
    case DType::f64:
      return &finish_tile<T, double>;
    case DType::bf16:
      return &finish_tile<T, bfloat16>;
    default:
      refuse("matmul", "its result needs f32, f64 or bf16");
  }
}

template <class T>
T read(const void* data, DType dtype, std::int64_t i) {
  switch (dtype) {
    case DType::f64:
      return widen_to<T>(static_cast<const double*>(data)[i]);
    case DType::bf16:
      return widen_to<T>(static_cast<const bfloat16*>(data)[i]);
    default:
      return widen_to<T>(static_cast<const float*>(data)[i]);
  }
}

template <class T>
class Blocked {
 public:
  explicit Blocked(const Product& x)
      : x_(x),
        k_block_(k_block_of(x.k)),
        // With several blocks of k the sums are kept in c itself, or in scratch if c is narrower than T.
        beside_(k_block_ < x.k && x.c_dtype != dtype_of<T>()),
        pack_a_(pack_for<tile_rows, T>(x.a.dtype)),
        pack_b_(pack_for<width, T>(x.b.dtype)),
        store_(store_for<T>(x.c_dtype)),
        c_size_(static_cast<std::int64_t>(size_of(x.c_dtype))) {
    const std::int64_t depth = std::max<std::int64_t>(k_block_, 1);
    const auto bytes = [](std::int64_t elements) {
      return static_cast<std::size_t>(elements + pack_slack<T>) * sizeof(T);
    };
    left_ = reinterpret_cast<T*>(thread_scratch(ScratchUse::left, bytes(m_block * depth)));
    right_ =
        reinterpret_cast<T*>(thread_scratch(ScratchUse::right, bytes(std::min(n_block, round_up(x.n, width)) * depth)));
    if (beside_)
      sums_ = reinterpret_cast<T*>(
          thread_scratch(ScratchUse::result, bytes(std::min(m_span, round_up(x.m, tile_rows)) * n_block)));
  }

  void run() {
    const std::int64_t span = beside_ ? m_span : std::max<std::int64_t>(x_.m, 1);
    for (std::int64_t m0 = 0; m0 < x_.m; m0 += span)
      for (std::int64_t n0 = 0; n0 < x_.n; n0 += n_block)
        strip(m0, std::min(span, x_.m - m0), n0, std::min(n_block, x_.n - n0));
  }

 private:
  static constexpr int width = tile_columns<T>;

  void strip(std::int64_t m0, std::int64_t m, std::int64_t n0, std::int64_t n) {
    std::int64_t p = 0;
    do {  // once even if k is 0
      const std::int64_t depth = std::min(k_block_, x_.k - p);
      pack_b_(x_.b, p, depth, n0, n, right_);
      for (std::int64_t i = 0; i < m; i += m_block) {
        const std::int64_t rows = std::min(m_block, m - i);
        pack_a_(x_.a, p, depth, m0 + i, rows, left_);
        for (std::int64_t j = 0; j < n; j += width)
          for (std::int64_t r = 0; r < rows; r += tile_rows)
            tile(p, depth, m0, i + r, std::min<std::int64_t>(tile_rows, rows - r), n0, j,
                 std::min<std::int64_t>(width, n - j), left_ + r * depth);
      }
      p += depth;
    } while (p < x_.k);
  }

  // Rows i of the span from m0, columns j of the strip from n0.
  void tile(std::int64_t p, std::int64_t depth, std::int64_t m0, std::int64_t i, std::int64_t rows, std::int64_t n0,
            std::int64_t j, std::int64_t columns, const T* a) {
    alignas(64) T tile[tile_rows * width];
    std::byte* c = static_cast<std::byte*>(x_.c) + ((m0 + i) * x_.c_stride + n0 + j) * c_size_;
    const bool first = p == 0, last = p + depth >= x_.k;
    T* before = beside_ ? sums_ + i * n_block + j : nullptr;
    const Fetch fetch = beside_ && !last ? Fetch{reinterpret_cast<const std::byte*>(before),
                                                 n_block * static_cast<std::int64_t>(sizeof(T))}
                                         : Fetch{c, x_.c_stride * c_size_};
    micro_tile<T>(depth, a, right_ + j * depth, tile, rows, nullptr, fetch);
    Finish<T> finish;
    if (beside_ && !last) {
      if (!first) finish.base = before;
      finish.base_stride = n_block;
      return finish_tile<T, T>(tile, rows, columns, before, n_block, finish);
    }
    T bias[width];
    if (x_.bias != nullptr && last) {
      for (std::int64_t q = 0; q < columns; ++q) bias[q] = read<T>(x_.bias, x_.bias_dtype, n0 + j + q);
      finish.bias = bias;
    }
    finish.before = before;
    if (x_.add || (!beside_ && !first)) {
      finish.base = c;
      finish.base_stride = x_.c_stride;
    } else if (x_.residual != nullptr) {
      finish.base = static_cast<const std::byte*>(x_.residual) + ((m0 + i) * x_.residual_stride + n0 + j) * c_size_;
      finish.base_stride = x_.residual_stride;
    }
    store_(tile, rows, columns, c, x_.c_stride, finish);
  }

  const Product& x_;
  std::int64_t k_block_;
  bool beside_;
  Pack<T> pack_a_, pack_b_;
  StoreTile<T> store_;
  std::int64_t c_size_;
  T *left_ = nullptr, *right_ = nullptr, *sums_ = nullptr;
};

bool in_double(const Product& x) {
  return x.c_dtype == DType::f64 || x.a.dtype == DType::f64 || x.b.dtype == DType::f64;
}

}  // namespace

void multiply(const Product& product) {
  if (product.m <= 0 || product.n <= 0) return;
  if (suits_bfloat16_product(product) && has_bfloat16_instructions()) return bfloat16_product(product);
  if (in_double(product))
    Blocked<double>(product).run();
  else
    Blocked<float>(product).run();
}

int row_step(DType) { return tile_rows; }
int column_step(DType dtype) { return dtype == DType::f64 ? tile_columns<double> : tile_columns<float>; }

void multiply(Team& team, const Product& x) {
  const std::int64_t row_tiles = (x.m + tile_rows - 1) / tile_rows;
  const std::int64_t step = column_step(in_double(x) ? DType::f64 : DType::f32);
  const std::int64_t column_tiles = (x.n + step - 1) / step;
  // A hand-over costs as much as some 100k operations.
  const std::int64_t worth = 1 + x.m * x.n * std::max<std::int64_t>(x.k, 1) / 50000;
  const std::int64_t members = std::min<std::int64_t>(team.size(), worth);
  // Of all grids, the one whose largest part is cheapest; packing an element costs about as much as 20 products.
  std::int64_t grid_rows = 1, grid_columns = 1, best = INT64_MAX;
  for (std::int64_t r = 1; r <= members; ++r) {
    const std::int64_t c = members / r;
    const std::int64_t m = (row_tiles + r - 1) / r * tile_rows, n = (column_tiles + c - 1) / c * step;
    const std::int64_t cost = m * n + 20 * (m * ((n + n_block - 1) / n_block) + n);
    if (cost < best) {
      best = cost;
      grid_rows = r;
      grid_columns = c;
    }
  }
  if (grid_rows * grid_columns == 1) return multiply(x);
  team.run([&](int member) {
    if (member >= grid_rows * grid_columns) return;
    const std::int64_t r = member / grid_columns, c = member % grid_columns;
    multiply(part_of(x, std::min(x.m, row_tiles * r / grid_rows * tile_rows),
                     std::min(x.m, row_tiles * (r + 1) / grid_rows * tile_rows),
                     std::min(x.n, column_tiles * c / grid_columns * step),
                     std::min(x.n, column_tiles * (c + 1) / grid_columns * step)));
  });
}

}  // namespace weft::WEFT_ISA
