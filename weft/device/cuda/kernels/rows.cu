// gather_rows, sum_rows, embedding: whole rows, by index; what turns tokens into such an index.
#include "weft/device/argument_checks.h"
#include "weft/device/cuda/kernels/launch.cuh"
#include "weft/device/cuda/kernels/reduce.cuh"
#include "weft/device/cuda/table.h"
#include "weft/device/operations/loss.h"
#include "weft/device/operations/rows.h"

namespace weft::cuda {

namespace {

// Rows of `Word`s, whatever they mean.
template <class Word>
struct GatherWords {
  Rows<const Word> x;
  Rows<Word> y;
  const std::int32_t* index;
  std::int32_t divisor;
  std::int64_t rows;
  __device__ void operator()(std::int64_t r, std::int64_t u) const {
    const std::int32_t from = index[r] < 0 ? -1 : index[r] / divisor;
    y[r][u] = from >= 0 && from < rows ? x[from][u] : Word{};
  }
};

template <class Word>
void gather(CudaStream& stream, const GatherRows& op, const std::int32_t* in_use) {
  const auto ratio = static_cast<std::int64_t>(sizeof(Word) / size_of(op.x.dtype));
  const GatherWords<Word> words{{static_cast<const Word*>(op.x.data), op.x.stride / ratio},
                                {static_cast<Word*>(op.y.data), op.y.stride / ratio},
                                op.index.as<std::int32_t>(),
                                static_cast<std::int32_t>(op.divisor),
                                op.x.rows()};
  launch_over_rows("gather_rows", stream, words, op.y.rows(), columns_of(op.y) / ratio, in_use);
}

// The same for long rows of 16-byte words: a warp per row, with all of its words on the way at once. What is written goes
// past the caches, where the rows that are read several times should stay.
constexpr int warps = 8, words_at_once = 8;
__global__ void __launch_bounds__(32 * warps)
    gather_long_rows(Rows<const uint4> xs, Rows<uint4> ys, const std::int32_t* index, std::int32_t divisor,
                     std::int64_t x_rows, std::int64_t rows, int words, const std::int32_t* in_use) {
  const std::int64_t r = blockIdx.x * static_cast<std::int64_t>(warps) + threadIdx.x / 32;
  if (r >= rows) return;
  const std::int32_t at = index[r];  // before it is known whether the row is in use: the two readings overlap
  if (r >= used_rows(in_use, rows)) return;
  const std::int32_t from = at < 0 ? -1 : at / divisor;
  const bool given = from >= 0 && from < x_rows;
  const uint4* x = xs[given ? from : 0];
  uint4* y = ys[r];
  for (int first = static_cast<int>(threadIdx.x % 32); first < words; first += 32 * words_at_once) {
    uint4 v[words_at_once];
#pragma unroll
    for (int i = 0; i < words_at_once; ++i) {
      const int u = first + 32 * i;
      v[i] = given && u < words ? __ldg(x + u) : uint4{0, 0, 0, 0};
    }
#pragma unroll
    for (int i = 0; i < words_at_once; ++i) {
      const int u = first + 32 * i;
      if (u < words) __stcs(y + u, v[i]);
    }
  }
}

void gather_long(CudaStream& stream, const GatherRows& op, const std::int32_t* in_use) {
  const auto ratio = static_cast<std::int64_t>(sizeof(uint4) / size_of(op.x.dtype));
  const std::int64_t rows = op.y.rows();
  gather_long_rows<<<static_cast<unsigned>(divide_up(rows, warps)), 32 * warps, 0, stream.handle()>>>(
      {static_cast<const uint4*>(op.x.data), op.x.stride / ratio},
      {static_cast<uint4*>(op.y.data), op.y.stride / ratio}, op.index.as<std::int32_t>(),
      static_cast<std::int32_t>(op.divisor), op.x.rows(), rows, static_cast<int>(columns_of(op.y) / ratio), in_use);
  launched("gather_rows");
}

// The same where the places of a row are known: a warp reads it once and writes it to all of them. What is more, each warp
// looks for rows of zeros among `share` rows of y.
constexpr int scatter_warps = 4, most_places = 32;
__global__ void __launch_bounds__(32 * scatter_warps)
    scatter_long_rows(Rows<const uint4> xs, Rows<uint4> ys, const std::int32_t* places, int count, std::int64_t x_rows,
                      const std::int32_t* index, std::int64_t rows, int share, int words, const std::int32_t* in_use) {
  const std::int64_t from = blockIdx.x * static_cast<std::int64_t>(scatter_warps) + threadIdx.x / 32;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  if (from >= x_rows) return;
  const std::int32_t place = lane < count ? places[from * count + lane] : -1;
  const std::int64_t end = used_rows(in_use, rows);
  for (int begin = 0; begin < words; begin += 32 * words_at_once) {  // all lanes as often: they hand on places
    const int first = begin + lane;
    uint4 v[words_at_once];
#pragma unroll
    for (int i = 0; i < words_at_once; ++i)
      if (first + 32 * i < words) v[i] = __ldg(xs[from] + first + 32 * i);
    for (int j = 0; j < count; ++j) {
      const std::int32_t to = __shfl_sync(all_lanes, place, j);
      if (to < 0 || to >= end) continue;
#pragma unroll
      for (int i = 0; i < words_at_once; ++i)
        if (first + 32 * i < words) ys[to][first + 32 * i] = v[i];
    }
  }
  for (int begin = 0; begin < share; begin += 32) {
    const std::int64_t r = from * share + begin + lane;
    unsigned empty = __ballot_sync(all_lanes, begin + lane < share && r < end && index[r] < 0);
    for (; empty != 0; empty &= empty - 1) {
      uint4* y = ys[from * share + begin + __ffs(static_cast<int>(empty)) - 1];
      for (int u = lane; u < words; u += 32) y[u] = uint4{0, 0, 0, 0};
    }
  }
}

void scatter_long(CudaStream& stream, const GatherRows& op, const std::int32_t* in_use) {
  const auto ratio = static_cast<std::int64_t>(sizeof(uint4) / size_of(op.x.dtype));
  const std::int64_t rows = op.y.rows(), x_rows = op.x.rows();
  scatter_long_rows<<<static_cast<unsigned>(divide_up(x_rows, scatter_warps)), 32 * scatter_warps, 0,
                      stream.handle()>>>({static_cast<const uint4*>(op.x.data), op.x.stride / ratio},
                                         {static_cast<uint4*>(op.y.data), op.y.stride / ratio},
                                         op.places.as<std::int32_t>(), static_cast<int>(op.divisor), x_rows,
                                         op.index.as<std::int32_t>(), rows, static_cast<int>(divide_up(rows, x_rows)),
                                         static_cast<int>(columns_of(op.y) / ratio), in_use);
  launched("gather_rows");
}

// Whether a row's bytes, strides and addresses are multiples of `bytes`.
bool divides(std::int64_t bytes, const Tensor& x, const Tensor& y) {
  const auto size = static_cast<std::int64_t>(size_of(y.dtype));
  const auto fits = [&](const Tensor& t) {
    return reinterpret_cast<std::intptr_t>(t.data) % bytes == 0 && (t.rows() <= 1 || t.stride * size % bytes == 0);
  };
  return columns_of(y) * size % bytes == 0 && fits(x) && fits(y);
}

template <int V, class T, class Y>
struct SumByIndex {
  Rows<const T> x;
  Rows<const std::int32_t> index;
  Rows<Y> y;
  Rows<const Y> residual;
  Rows<const T> extra;
  std::int64_t choices, rows;
  __device__ void operator()(std::int64_t t, std::int64_t u) const {
    float sum[V] = {}, v[V];
    if (residual.data != nullptr) load<V>(residual[t] + u * V, sum);
    if (extra.data != nullptr) {
      load<V>(extra[t] + u * V, v);
#pragma unroll
      for (int i = 0; i < V; ++i) sum[i] += v[i];
    }
    for (std::int64_t j = 0; j < choices; ++j) {
      const std::int32_t from = index[t][j];
      if (from < 0 || from >= rows) continue;
      load<V>(x[from] + u * V, v);
#pragma unroll
      for (int i = 0; i < V; ++i) sum[i] += v[i];
    }
    store<V>(y[t] + u * V, sum);
  }
};

template <int V, class W, class Y>
struct Embed {
  Rows<const W> weight;
  Rows<Y> y;
  const std::int32_t* tokens;
  std::int64_t vocabulary;
  __device__ void operator()(std::int64_t t, std::int64_t u) const {
    float v[V] = {};
    const std::int32_t token = tokens[t];
    if (token >= 0 && token < vocabulary) load<V>(weight[token] + u * V, v);
    store<V>(y[t] + u * V, v);
  }
};

struct ShiftTokens {
  const std::int32_t *x, *boundaries;
  std::int32_t* y;
  std::int64_t tokens, by;
  int length;
  std::int32_t fill;
  __device__ void operator()(std::int64_t, std::int64_t t) const {
    const std::int64_t from = t + by;
    const bool together =
        from < tokens && (boundaries != nullptr ? boundaries[from] == boundaries[t] : from / length == t / length);
    y[t] = together ? x[from] : fill;
  }
};

struct CopyEachChoice {
  const std::int32_t* indices;
  std::int32_t* y;
  std::int64_t each, copies;
  __device__ void operator()(std::int64_t, std::int64_t i) const {
    const std::int64_t x = indices[i / copies];
    y[i] = static_cast<std::int32_t>(x < 0 ? x : (x / each * copies + i % copies) * each + x % each);
  }
};

struct FindLocalTokens {
  const std::int32_t* tokens;
  std::int32_t* y;
  std::int64_t first, count;
  __device__ void operator()(std::int64_t, std::int64_t t) const {
    const std::int64_t local = tokens[t] - first;
    y[t] = local >= 0 && local < count ? static_cast<std::int32_t>(local) : -1;
  }
};

}  // namespace

void gather_rows(Stream& stream, const GatherRows& op) {
  constexpr const char* name = "gather_rows";
  check_arguments(name, op);
  if (op.y.rows() == 0) return;
  const std::int32_t* in_use = in_use_of(name, op.rows_in_use);
  CudaStream& s = cuda_stream(stream);
  if (divides(16, op.x, op.y)) {
    const std::int64_t words = columns_of(op.y) * static_cast<std::int64_t>(size_of(op.y.dtype)) / 16;
    if (words < 32 || words >= 1 << 30) return gather<uint4>(s, op, in_use);
    const bool scatters = op.places.given() && op.x.rows() > 0 && op.divisor > 1 && op.divisor <= most_places;
    return scatters ? scatter_long(s, op, in_use) : gather_long(s, op, in_use);
  }
  switch (size_of(op.y.dtype)) {
    case 8:
      return gather<std::uint64_t>(s, op, in_use);
    case 4:
      return gather<std::uint32_t>(s, op, in_use);
    case 2:
      return gather<std::uint16_t>(s, op, in_use);
    default:
      return gather<std::uint8_t>(s, op, in_use);
  }
}

void sum_rows(Stream& stream, const SumRows& op) {
  constexpr const char* name = "sum_rows";
  const std::int64_t rows = op.y.rows(), columns = columns_of(op.y);
  if (rows == 0) return;
  check_arguments(name, op);
  with_storage_and(name, op.x.dtype, op.y.dtype, [&](auto t, auto u) {
    using T = typename decltype(t)::type;
    using Y = typename decltype(u)::type;
    with_pack(columns, {&op.x, &op.y, &op.residual, &op.extra}, [&](auto v) {
      constexpr int V = decltype(v)::value;
      const SumByIndex<V, T, Y> sum{rows_of<const T>(op.x),
                                    rows_of<const std::int32_t>(op.index),
                                    rows_of<Y>(op.y),
                                    rows_of<const Y>(op.residual),
                                    rows_of<const T>(op.extra),
                                    op.index.shape.elements() / rows,
                                    op.x.rows()};
      launch_over_rows(name, cuda_stream(stream), sum, rows, columns / V);
    });
  });
}

void embedding(Stream& stream, const Embedding& op) {
  constexpr const char* name = "embedding";
  const std::int64_t rows = op.y.rows(), columns = columns_of(op.y);
  check_arguments(name, op);
  if (rows == 0) return;
  with_storage_and(name, op.weight.dtype, op.y.dtype, [&](auto t, auto u) {
    using W = typename decltype(t)::type;
    using Y = typename decltype(u)::type;
    with_pack(columns, {&op.weight, &op.y}, [&](auto v) {
      constexpr int V = decltype(v)::value;
      launch_over_rows(
          name, cuda_stream(stream),
          Embed<V, W, Y>{rows_of<const W>(op.weight), rows_of<Y>(op.y), op.tokens.as<std::int32_t>(), op.weight.rows()},
          rows, columns / V);
    });
  });
}

void copy_choices(Stream& stream, const CopyChoices& op) {
  constexpr const char* name = "copy_choices";
  check_arguments(name, op);
  launch_over_rows(name, cuda_stream(stream),
                   CopyEachChoice{op.indices.as<std::int32_t>(), op.y.as<std::int32_t>(), op.each, op.copies}, 1,
                   op.y.shape.elements());
}

void local_tokens(Stream& stream, const LocalTokens& op) {
  constexpr const char* name = "local_tokens";
  check_arguments(name, op);
  launch_over_rows(name, cuda_stream(stream),
                   FindLocalTokens{op.tokens.as<std::int32_t>(), op.y.as<std::int32_t>(), op.first, op.count}, 1,
                   op.tokens.shape.elements());
}

void shift(Stream& stream, const Shift& op) {
  constexpr const char* name = "shift";
  check_arguments(name, op);
  const std::int64_t tokens = op.x.shape.elements();
  const ShiftTokens tokens_of{op.x.as<std::int32_t>(),
                              optional<const std::int32_t>(op.boundaries),
                              op.y.as<std::int32_t>(),
                              tokens,
                              op.by,
                              static_cast<int>(op.length),
                              op.fill};
  launch_over_rows(name, cuda_stream(stream), tokens_of, 1, tokens);
}

}  // namespace weft::cuda
