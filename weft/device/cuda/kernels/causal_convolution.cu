// Causal depthwise convolution with few taps. A thread walks along a run of tokens with V channels side by side; what it
// has seen stays in registers, so that every element is read once (and a few before each run).
#include "weft/device/cuda/kernels/activation_kinds.cuh"
#include "weft/device/cuda/kernels/column_sums.cuh"
#include "weft/device/cuda/table.h"
#include "weft/device/operations/recurrent.h"

namespace weft::cuda {

namespace {

constexpr int most_taps = 16;
constexpr int threads = 128;
constexpr std::int64_t run = 32;      // tokens of a thread
constexpr std::int64_t sum_run = 64;  // of one that adds up the weight's gradient

struct Sizes {
  std::int64_t tokens, channels, length;
  const std::int32_t* boundaries;
  // How many tokens before t it sees, at most `most`.
  __device__ int reach(std::int64_t t, int most) const {
    std::int64_t begin = t - t % length;
    if (boundaries != nullptr && boundaries[t] > begin) begin = boundaries[t];
    return t - begin < most ? static_cast<int>(t - begin) : most;
  }
};

// The same for token after token, without a division for each.
struct Walk {
  std::int64_t position;  // of the next token in its sequence
  __device__ Walk(const Sizes& s, std::int64_t t) : position(t % s.length) {}
  __device__ int reach(const Sizes& s, std::int64_t t, int most) {
    std::int64_t seen = position;
    if (s.boundaries != nullptr && t - s.boundaries[t] < seen) seen = t - s.boundaries[t];
    position = position + 1 == s.length ? 0 : position + 1;
    return seen < most ? static_cast<int>(seen) : most;
  }
};

template <class T, class W>
struct Arguments {
  Sizes sizes;
  Rows<const T> x, dy;
  Rows<T> y;  // or dx
  const W *weight, *bias;
  bool silu;
};

// V channels of one thread: the taps of its weights, and the last tokens.
template <int taps, int V>
struct Window {
  float weight[taps][V], bias[V], x[taps][V];  // x[taps - 1] is the newest

  template <class T, class W>
  __device__ Window(const Arguments<T, W>& a, std::int64_t c, std::int64_t t) {
#pragma unroll
    for (int v = 0; v < V; ++v) {
      bias[v] = a.bias != nullptr ? widen(a.bias[c + v]) : 0.0f;
#pragma unroll
      for (int i = 0; i < taps; ++i) weight[i][v] = widen(a.weight[(c + v) * taps + i]);
    }
    // The tokens before t, if it sees them: x[taps - 1] is t - 1, until t comes.
    const int reach = t < a.sizes.tokens ? a.sizes.reach(t, taps - 1) : 0;
#pragma unroll
    for (int i = 0; i < taps; ++i) {
#pragma unroll
      for (int v = 0; v < V; ++v) x[i][v] = 0;
      const int back = taps - i;
      if (back <= reach) load<V>(a.x[t - back] + c, x[i]);
    }
  }
  // Takes in a token that sees `reach` before it.
  __device__ void enter(const float (&token)[V], int reach) {
#pragma unroll
    for (int v = 0; v < V; ++v) {
#pragma unroll
      for (int i = 0; i + 1 < taps; ++i) x[i][v] = taps - 1 - i <= reach ? x[i + 1][v] : 0.0f;
      x[taps - 1][v] = token[v];
    }
  }
  __device__ float sum(int v) const {
    float s = bias[v];
#pragma unroll
    for (int i = 0; i < taps; ++i) s += weight[i][v] * x[i][v];
    return s;
  }
  // The gradient of the sum, from that of its activation.
  __device__ float sum_gradient(int v, float d, bool silu) const {
    if (!silu) return d;
    const float s = sum(v), gate = sigmoid(s);
    return d * (gate + s * gate * (1.0f - gate));
  }
};

template <int taps, int V, class T, class W>
__global__ void __launch_bounds__(threads) forward_kernel(Arguments<T, W> a) {
  const std::int64_t c = (blockIdx.x * static_cast<std::int64_t>(threads) + threadIdx.x) * V, t0 = blockIdx.y * run;
  if (c >= a.sizes.channels) return;
  const std::int64_t t1 = t0 + run < a.sizes.tokens ? t0 + run : a.sizes.tokens;
  Window<taps, V> window(a, c, t0);
  Walk walk(a.sizes, t0);
#pragma unroll 4
  for (std::int64_t t = t0; t < t1; ++t) {
    float x[V], y[V];
    load<V>(a.x[t] + c, x);
    const int reach = walk.reach(a.sizes, t, taps - 1);
    window.enter(x, reach);
#pragma unroll
    for (int v = 0; v < V; ++v) {
      const float s = window.sum(v);
      y[v] = a.silu ? s * sigmoid(s) : s;
    }
    store<V>(a.y[t] + c, y);
  }
}

// dx of token t is complete once the gradients of the sums of t .. t + taps - 1 are there.
template <int taps, int V, class T, class W>
__global__ void __launch_bounds__(threads) backward_kernel(Arguments<T, W> a) {
  const std::int64_t c = (blockIdx.x * static_cast<std::int64_t>(threads) + threadIdx.x) * V, t0 = blockIdx.y * run;
  if (c >= a.sizes.channels) return;
  const std::int64_t t1 = t0 + run < a.sizes.tokens ? t0 + run : a.sizes.tokens;
  Window<taps, V> window(a, c, t0);
  Walk walk(a.sizes, t0);
  float dx[taps][V] = {};  // dx[taps - 1 - i]: of token t - i
#pragma unroll 4
  for (std::int64_t t = t0; t < t1 + taps - 1; ++t) {
#pragma unroll
    for (int i = 0; i + 1 < taps; ++i)
#pragma unroll
      for (int v = 0; v < V; ++v) dx[i][v] = dx[i + 1][v];
#pragma unroll
    for (int v = 0; v < V; ++v) dx[taps - 1][v] = 0;
    if (t < a.sizes.tokens) {
      float x[V], d[V];
      load<V>(a.x[t] + c, x);
      load<V>(a.dy[t] + c, d);
      const int reach = walk.reach(a.sizes, t, taps - 1);
      window.enter(x, reach);
#pragma unroll
      for (int v = 0; v < V; ++v) {
        const float g = window.sum_gradient(v, d[v], a.silu);
#pragma unroll
        for (int back = 0; back < taps; ++back)
          if (back <= reach) dx[taps - 1 - back][v] += window.weight[taps - 1 - back][v] * g;
      }
    }
    const std::int64_t done = t - (taps - 1);
    if (done >= t0) store<V>(a.y[done] + c, dx[0]);
  }
}

// parts: [runs][taps + 1][channels], the bias's gradient last.
template <int taps, int V, class T, class W>
__global__ void __launch_bounds__(threads) weight_kernel(Arguments<T, W> a, float* parts) {
  const std::int64_t c = (blockIdx.x * static_cast<std::int64_t>(threads) + threadIdx.x) * V, t0 = blockIdx.y * sum_run;
  if (c >= a.sizes.channels) return;
  const std::int64_t t1 = t0 + sum_run < a.sizes.tokens ? t0 + sum_run : a.sizes.tokens;
  Window<taps, V> window(a, c, t0);
  Walk walk(a.sizes, t0);
  float sums[taps + 1][V] = {};
#pragma unroll 2
  for (std::int64_t t = t0; t < t1; ++t) {
    float x[V], d[V];
    load<V>(a.x[t] + c, x);
    load<V>(a.dy[t] + c, d);
    const int reach = walk.reach(a.sizes, t, taps - 1);
    window.enter(x, reach);
#pragma unroll
    for (int v = 0; v < V; ++v) {
      const float g = window.sum_gradient(v, d[v], a.silu);
#pragma unroll
      for (int i = 0; i < taps; ++i) sums[i][v] += g * window.x[i][v];
      sums[taps][v] += g;
    }
  }
#pragma unroll
  for (int i = 0; i <= taps; ++i) store<V>(parts + (blockIdx.y * (taps + 1) + i) * a.sizes.channels + c, sums[i]);
}

// dweight [channels][taps] and dbias [channels] from the parts.
template <int taps, class G>
__global__ void finish_kernel(const float* parts, std::int64_t runs, std::int64_t channels, G* dweight, G* dbias,
                              bool add) {
  const int tap = static_cast<int>(blockIdx.y);
  const std::int64_t c = blockIdx.x * static_cast<std::int64_t>(column_width) + threadIdx.x;
  const PartsOfRows part{parts + tap * channels, (taps + 1) * channels};
  const float sum = sum_of_rows(part, 0, runs, c, c < channels);
  if (threadIdx.y != 0 || c >= channels) return;
  if (tap == taps && dbias == nullptr) return;
  G& to = tap == taps ? dbias[c] : dweight[c * taps + tap];
  to = narrow<G>(add ? widen(to) + sum : sum);
}

Sizes sizes_of(const char* name, const CausalConvolution& op) {
  const std::int64_t tokens = op.x.rows(), channels = op.weight.rows(), taps = columns_of(op.weight);
  const std::int64_t length = op.length > 0 ? op.length : std::max<std::int64_t>(tokens, 1);
  require(taps >= 1 && taps <= most_taps, name, "has more than 16 taps, or none");
  require(tokens == 0 || columns_of(op.x) == channels, name, "x and the weight differ in channels");
  require(tokens % length == 0, name, "T is not a multiple of length");
  require(tokens <= 65535 * run, name, "more than 2 million tokens");
  require(!op.bias.given() || (op.bias.shape.elements() == channels && op.bias.dtype == op.weight.dtype), name,
          "the bias is not [channels] of the weight's dtype");
  require(!op.boundaries.given() || (op.boundaries.dtype == DType::i32 && op.boundaries.shape.elements() == tokens),
          name, "boundaries is not i32 [T]");
  return {tokens, channels, length, optional<const std::int32_t>(op.boundaries)};
}

template <class T, class W>
Arguments<T, W> arguments(const Sizes& sizes, const CausalConvolution& op, const Tensor& dy, const Tensor& y) {
  return {sizes,         rows_of<const T>(op.x),  rows_of<const T>(dy),
          rows_of<T>(y), op.weight.as<const W>(), optional<const W>(op.bias),
          op.silu};
}

// body(integral constants taps, V). The usual four taps with eight channels at once; every other number with one.
template <class Body>
void with_taps(std::int64_t taps, bool wide, const Body& body) {
  const auto one = std::integral_constant<int, 1>{};
  switch (taps) {
    case 2:
      return body(std::integral_constant<int, 2>{}, one);
    case 3:
      return body(std::integral_constant<int, 3>{}, one);
    case 4:
      return wide ? body(std::integral_constant<int, 4>{}, std::integral_constant<int, pack>{})
                  : body(std::integral_constant<int, 4>{}, one);
    default:
      refuse("causal_convolution", "has 2, 3 or 4 taps on a GPU");
  }
}

dim3 grid_of(const Sizes& s, int V, std::int64_t tokens_a_run) {
  return dim3(static_cast<unsigned>(divide_up(s.channels, static_cast<std::int64_t>(threads) * V)),
              static_cast<unsigned>(divide_up(s.tokens, tokens_a_run)));
}

}  // namespace

void causal_convolution(Stream& stream, const CausalConvolution& op) {
  constexpr const char* name = "causal_convolution";
  require(same_size(op.x, op.y) && op.x.dtype == op.y.dtype, name, "x and y differ in shape or dtype");
  const Sizes sizes = sizes_of(name, op);
  if (sizes.tokens == 0) return;
  with_storage_and(name, op.x.dtype, op.weight.dtype, [&](auto t, auto w) {
    using T = typename decltype(t)::type;
    using W = typename decltype(w)::type;
    with_taps(columns_of(op.weight), packs(sizes.channels, {&op.x, &op.y}), [&](auto taps, auto v) {
      constexpr int V = decltype(v)::value;
      forward_kernel<decltype(taps)::value, V, T, W>
          <<<grid_of(sizes, V, run), threads, 0, cuda_stream(stream).handle()>>>(arguments<T, W>(sizes, op, {}, op.y));
      launched(name);
    });
  });
}

void causal_convolution_backward(Stream& stream, const CausalConvolutionBackward& op) {
  constexpr const char* name = "causal_convolution_backward";
  const CausalConvolution& f = op.forward;
  require(same_size(f.x, op.dy) && same_size(f.x, op.dx) && f.x.dtype == op.dy.dtype && f.x.dtype == op.dx.dtype, name,
          "x, dy and dx differ in shape or dtype");
  const Sizes sizes = sizes_of(name, f);
  if (sizes.tokens == 0) return;
  with_storage_and(name, f.x.dtype, f.weight.dtype, [&](auto t, auto w) {
    using T = typename decltype(t)::type;
    using W = typename decltype(w)::type;
    with_taps(columns_of(f.weight), packs(sizes.channels, {&f.x, &op.dy, &op.dx}), [&](auto taps, auto v) {
      constexpr int V = decltype(v)::value;
      backward_kernel<decltype(taps)::value, V, T, W>
          <<<grid_of(sizes, V, run), threads, 0, cuda_stream(stream).handle()>>>(
              arguments<T, W>(sizes, f, op.dy, op.dx));
      launched(name);
    });
  });
}

void causal_convolution_weight_gradient(Stream& stream, const CausalConvolutionWeightGradient& op) {
  constexpr const char* name = "causal_convolution_weight_gradient";
  const CausalConvolution& f = op.forward;
  require(same_size(f.x, op.dy) && f.x.dtype == op.dy.dtype, name, "x and dy differ in shape or dtype");
  require(same_size(f.weight, op.dweight), name, "the weight and its gradient differ in shape");
  require(op.dbias.given() == f.bias.given(), name, "dbias goes with the bias");
  require(!op.dbias.given() || (op.dbias.dtype == op.dweight.dtype && same_size(op.dbias, f.bias)), name,
          "dbias is not [channels] of dweight's dtype");
  const Sizes sizes = sizes_of(name, f);
  CudaStream& s = cuda_stream(stream);
  const std::int64_t runs = divide_up(sizes.tokens, sum_run);
  float* parts = s.scratch_of<float>(std::max<std::int64_t>(runs, 1) * (columns_of(f.weight) + 1) * sizes.channels);
  with_storage_and(name, f.x.dtype, f.weight.dtype, [&](auto t, auto w) {
    using T = typename decltype(t)::type;
    using W = typename decltype(w)::type;
    with_taps(columns_of(f.weight), packs(sizes.channels, {&f.x, &op.dy}), [&](auto count, auto v) {
      constexpr int taps = decltype(count)::value, V = decltype(v)::value;
      if (runs > 0) {
        weight_kernel<taps, V, T, W>
            <<<grid_of(sizes, V, sum_run), threads, 0, s.handle()>>>(arguments<T, W>(sizes, f, op.dy, {}), parts);
        launched(name);
      }
      with_storage_and(name, f.x.dtype, op.dweight.dtype, [&](auto, auto g) {
        using G = typename decltype(g)::type;
        const dim3 grid(static_cast<unsigned>(divide_up(sizes.channels, column_width)), taps + 1);
        finish_kernel<taps, G><<<grid, dim3(column_width, column_lanes), 0, s.handle()>>>(
            parts, runs, sizes.channels, op.dweight.as<G>(), optional<G>(op.dbias), op.store == Store::add);
        launched(name);
      });
    });
  });
}

}  // namespace weft::cuda
