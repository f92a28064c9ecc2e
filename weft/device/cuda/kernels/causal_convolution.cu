// Causal depthwise convolution with few taps. A warp walks along a run of tokens, a thread with V channels side by side;
// what it has seen stays in registers, so that every element is read once (and a few before each run). The next tokens
// are on their way through shared memory while the present ones are worked on.
#include "weft/device/argument_checks.h"
#include "weft/device/cuda/kernels/activation_kinds.cuh"
#include "weft/device/cuda/kernels/column_sums.cuh"
#include "weft/device/cuda/kernels/quick.cuh"
#include "weft/device/cuda/kernels/ring.cuh"
#include "weft/device/cuda/table.h"
#include "weft/device/operations/recurrent.h"

namespace weft::cuda {

namespace {

constexpr int runs_per_block = 4;  // one for each warp, side by side, so that they share what is before
constexpr int run = 32;            // tokens of a warp
constexpr int block_tokens = runs_per_block * run;
constexpr int at_once = 4;  // tokens in the body of a loop: as many as there are taps, so that none is moved
template <class T>
constexpr int wide_channels = 16 / sizeof(T);  // of a thread
constexpr int few_channels = 4;                // where it holds the sums of gradients, too

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
  int token, position, length;  // the next token; its place in its sequence
  const std::int32_t* boundaries;
  __device__ Walk(const Sizes& s, std::int64_t t)
      : token(static_cast<int>(t)),
        position(static_cast<int>(t % s.length)),
        length(static_cast<int>(s.length)),
        boundaries(s.boundaries) {}
  __device__ int reach(int most) {
    int seen = position;
    if (boundaries != nullptr) seen = min(seen, token - boundaries[token]);
    ++token;
    position = position + 1 == length ? 0 : position + 1;
    return min(seen, most);
  }
  // Whether the next `count` tokens see `most` before them, all in one sequence; then goes past them.
  __device__ bool passes(int count, int most) {
    if (position < most || position + count > length) return false;
    if (boundaries != nullptr) {
      const int begin = boundaries[token];
      if (token - begin < most || boundaries[token + count - 1] != begin) return false;
    }
    token += count;
    position = position + count == length ? 0 : position + count;
    return true;
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

// The tokens and channels of a thread.
template <int V>
struct Place {
  std::int64_t channel = (blockIdx.x * static_cast<std::int64_t>(32) + threadIdx.x) * V;
  std::int64_t token = (blockIdx.y * static_cast<std::int64_t>(runs_per_block) + threadIdx.y) * run;
  // How many of a run's tokens there are, and up to `more` after them.
  __device__ int count(const Sizes& s, int more = 0) const {
    const std::int64_t left = s.tokens - token;
    return left < run + more ? static_cast<int>(left) : run + more;
  }
};

// The tokens of a thread's run on their way: of x, and of dy where there are two streams. `room` is shared memory.
template <class T, int V, int streams>
struct Tokens {
  static constexpr int depth = 8;
  using Words = Ring<Pack<T, V>, streams, depth, 32 * runs_per_block>;
  Words& ring;
  int count, asked = 0, thread = static_cast<int>(threadIdx.y * 32 + threadIdx.x);
  const T* from[streams];
  std::int64_t stride[streams];

  __device__ Tokens(Words& room, int tokens, const Place<V>& place, const Rows<const T> (&rows)[streams])
      : ring(room), count(tokens) {
#pragma unroll
    for (int s = 0; s < streams; ++s) {
      from[s] = rows[s][place.token] + place.channel;
      stride[s] = rows[s].stride;
    }
#pragma unroll
    for (int i = 0; i + 1 < depth; ++i) ask();
  }
  __device__ void ask() {
    if (asked < count) {
#pragma unroll
      for (int s = 0; s < streams; ++s) {
        ring.ask(asked % depth, s, from[s], thread);
        from[s] += stride[s];
      }
    }
    ++asked;
    ring.asked();
  }
  // Waits for the next token, with those after it on their way.
  __device__ void next() {
    ask();
    ring.template wait<depth - 1>();
  }
  __device__ void widened(int token, int stream, float (&x)[V]) const {
    const Pack<T, V> word = ring.get(token % depth, stream, thread);
#pragma unroll
    for (int v = 0; v < V; ++v) x[v] = widen(word, v);
  }
};

// V channels of one thread: the taps of its weights, and the last tokens.
template <int taps, int V>
struct Window {
  float weight[V][taps], bias[V], x[taps][V];  // x[taps - 1] is the newest

  template <class T, class W>
  __device__ Window(const Arguments<T, W>& a, std::int64_t c, std::int64_t t) {
#pragma unroll
    for (int v = 0; v < V; ++v) {
      bias[v] = a.bias != nullptr ? widen(a.bias[c + v]) : 0.0f;
      if constexpr (V > 1) {
        load<taps>(a.weight + (c + v) * taps, weight[v]);
      } else {
#pragma unroll
        for (int i = 0; i < taps; ++i) weight[v][i] = widen(a.weight[(c + v) * taps + i]);
      }
    }
    // Widened once, not for every token again.
#pragma unroll
    for (int v = 0; v < V; ++v)
#pragma unroll
      for (int i = 0; i < taps; ++i) asm volatile("" : "+f"(weight[v][i]));
    // The tokens before t, if it sees them: x[taps - 1] is t - 1, until t comes.
    const int reach = a.sizes.reach(t, taps - 1);
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
      for (int i = 0; i + 1 < taps; ++i) x[i][v] = x[i + 1][v];
      x[taps - 1][v] = token[v];
    }
    if (reach == taps - 1) return;  // nearly always, and the same for all threads of a warp
#pragma unroll
    for (int i = 0; i + 1 < taps; ++i)
      if (taps - 1 - i > reach) {
#pragma unroll
        for (int v = 0; v < V; ++v) x[i][v] = 0;
      }
  }
  __device__ float sum(int v) const {
    float s = bias[v];
#pragma unroll
    for (int i = 0; i < taps; ++i) s += weight[v][i] * x[i][v];
    return s;
  }
  // The gradient of the sum, from that of its activation.
  __device__ float sum_gradient(int v, float d, bool silu) const {
    if (!silu) return d;
    const float s = sum(v), gate = quick_sigmoid(s);
    return d * (gate + s * gate * (1.0f - gate));
  }
};

template <int taps, int V, class T, class W>
__global__ void __launch_bounds__(32 * runs_per_block, 4) forward_kernel(Arguments<T, W> a) {
  using In = Tokens<T, V, 1>;
  __shared__ typename In::Words room;
  const Place<V> place;
  const int count = place.count(a.sizes);
  if (place.channel >= a.sizes.channels || count <= 0) return;
  T* y = a.y[place.token] + place.channel;
  In tokens(room, count, place, {a.x});
  Window<taps, V> window(a, place.channel, place.token);
  Walk walk(a.sizes, place.token);
  // usual: all tokens are there and see as many as there are taps. Nearly always, and the same for all threads of a warp.
  const auto take = [&](int done, auto usual) {
#pragma unroll
    for (int u = 0; u < at_once; ++u) {
      if (!usual.value && done + u >= count) break;
      float in[V], out[V];
      tokens.next();
      tokens.widened(done + u, 0, in);
      window.enter(in, usual.value ? taps - 1 : walk.reach(taps - 1));
#pragma unroll
      for (int v = 0; v < V; ++v) {
        const float s = window.sum(v);
        out[v] = a.silu ? s * quick_sigmoid(s) : s;
      }
      store<V>(y, out);
      y += a.y.stride;
    }
  };
  for (int done = 0; done < count; done += at_once) {
    for (; done + at_once <= count && walk.passes(at_once, taps - 1); done += at_once) take(done, std::true_type{});
    if (done < count) take(done, std::false_type{});
  }
}

// dx of token t is complete once the gradients of the sums of t .. t + taps - 1 are there.
template <int taps, int V, class T, class W>
__global__ void __launch_bounds__(32 * runs_per_block, 3) backward_kernel(Arguments<T, W> a) {
  using In = Tokens<T, V, 2>;
  __shared__ typename In::Words room;
  const Place<V> place;
  const int own = place.count(a.sizes), count = place.count(a.sizes, taps - 1);
  if (place.channel >= a.sizes.channels || own <= 0) return;
  T* to = a.y[place.token] + place.channel;
  In tokens(room, count, place, {a.x, a.dy});
  Window<taps, V> window(a, place.channel, place.token);
  Walk walk(a.sizes, place.token);
  float dx[taps][V] = {};  // dx[taps - 1 - i]: of token t - i
  const auto take = [&](int done, auto usual) {
#pragma unroll
    for (int u = 0; u < at_once; ++u) {
#pragma unroll
      for (int v = 0; v < V; ++v) {
#pragma unroll
        for (int i = 0; i + 1 < taps; ++i) dx[i][v] = dx[i + 1][v];
        dx[taps - 1][v] = 0;
      }
      if (usual.value || done + u < count) {
        float in[V], d[V];
        tokens.next();
        tokens.widened(done + u, 0, in);
        tokens.widened(done + u, 1, d);
        const int reach = usual.value ? taps - 1 : walk.reach(taps - 1);
        window.enter(in, reach);
#pragma unroll
        for (int v = 0; v < V; ++v) d[v] = window.sum_gradient(v, d[v], a.silu);
#pragma unroll
        for (int back = 0; back < taps; ++back)
          if (back <= reach) {
#pragma unroll
            for (int v = 0; v < V; ++v) dx[taps - 1 - back][v] += window.weight[v][taps - 1 - back] * d[v];
          }
      }
      const int finished = done + u - (taps - 1);
      if (usual.value || (finished >= 0 && finished < own)) {
        store<V>(to, dx[0]);
        to += a.y.stride;
      }
    }
  };
  // Usual: from the second turn on every token of a run finishes one.
  const int end = own + taps - 1, all_there = min(end, count);
  for (int done = 0; done < end; done += at_once) {
    for (; done >= taps - 1 && done + at_once <= all_there && walk.passes(at_once, taps - 1); done += at_once)
      take(done, std::true_type{});
    if (done < end) take(done, std::false_type{});
  }
}

// parts: [blocks of tokens][taps + 1][channels], the bias's gradient last. The runs of a block are added in their order.
template <int taps, int V, class T, class W>
__global__ void __launch_bounds__(32 * runs_per_block, 4) weight_kernel(Arguments<T, W> a, float* parts) {
  using In = Tokens<T, V, 2>;
  using OfRuns = float[runs_per_block][(taps + 1) * V][32];
  __shared__ union Room {
    typename In::Words words;
    OfRuns of_runs;  // once all words have been read
    __device__ Room() {}
  } room;
  const Place<V> place;
  const int count = place.count(a.sizes);
  float sums[taps + 1][V] = {};
  if (place.channel < a.sizes.channels && count > 0) {
    In tokens(room.words, count, place, {a.x, a.dy});
    Window<taps, V> window(a, place.channel, place.token);
    Walk walk(a.sizes, place.token);
    const auto take = [&](int done, auto usual) {
#pragma unroll
      for (int u = 0; u < at_once; ++u) {
        if (!usual.value && done + u >= count) break;
        float in[V], d[V];
        tokens.next();
        tokens.widened(done + u, 0, in);
        tokens.widened(done + u, 1, d);
        window.enter(in, usual.value ? taps - 1 : walk.reach(taps - 1));
#pragma unroll
        for (int v = 0; v < V; ++v) {
          const float g = window.sum_gradient(v, d[v], a.silu);
#pragma unroll
          for (int i = 0; i < taps; ++i) sums[i][v] += g * window.x[i][v];
          sums[taps][v] += g;
        }
      }
    };
    for (int done = 0; done < count; done += at_once) {
      for (; done + at_once <= count && walk.passes(at_once, taps - 1); done += at_once) take(done, std::true_type{});
      if (done < count) take(done, std::false_type{});
    }
  }
  __syncthreads();
#pragma unroll
  for (int i = 0; i <= taps; ++i)
#pragma unroll
    for (int v = 0; v < V; ++v) room.of_runs[threadIdx.y][i * V + v][threadIdx.x] = sums[i][v];
  __syncthreads();
  if (place.channel >= a.sizes.channels) return;
  for (int i = static_cast<int>(threadIdx.y); i <= taps; i += runs_per_block) {
    float sum[V];
#pragma unroll
    for (int v = 0; v < V; ++v) {
      sum[v] = room.of_runs[0][i * V + v][threadIdx.x];
#pragma unroll
      for (int w = 1; w < runs_per_block; ++w) sum[v] += room.of_runs[w][i * V + v][threadIdx.x];
    }
    store<V>(parts + (blockIdx.y * static_cast<std::int64_t>(taps + 1) + i) * a.sizes.channels + place.channel, sum);
  }
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
  const std::int64_t tokens = op.x.rows(), channels = op.weight.rows();
  const std::int64_t length = op.length > 0 ? op.length : std::max<std::int64_t>(tokens, 1);
  require(tokens <= std::int64_t{65535} * block_tokens, name, "more than 8 million tokens");
  return {tokens, channels, length, optional<const std::int32_t>(op.boundaries)};
}

template <class T, class W>
Arguments<T, W> arguments(const Sizes& sizes, const CausalConvolution& op, const Tensor& dy, const Tensor& y) {
  return {sizes,         rows_of<const T>(op.x),  rows_of<const T>(dy),
          rows_of<T>(y), op.weight.as<const W>(), optional<const W>(op.bias),
          op.silu};
}

// Whether a thread takes several channels: then it reads the taps of each at once.
bool wide(const Sizes& sizes, const CausalConvolution& op, std::initializer_list<const Tensor*> tensors) {
  const auto taps_bytes = static_cast<std::int64_t>(size_of(op.weight.dtype)) * columns_of(op.weight);
  return packs(sizes.channels, tensors) && reinterpret_cast<std::intptr_t>(op.weight.data) % taps_bytes == 0;
}

// body(integral constants taps, V). The usual four taps with several channels at once; every other number with one.
template <int wide_channels, class Body>
void with_taps(std::int64_t taps, bool wide, const Body& body) {
  const auto one = std::integral_constant<int, 1>{};
  switch (taps) {
    case 2:
      return body(std::integral_constant<int, 2>{}, one);
    case 3:
      return body(std::integral_constant<int, 3>{}, one);
    case 4:
      return wide ? body(std::integral_constant<int, 4>{}, std::integral_constant<int, wide_channels>{})
                  : body(std::integral_constant<int, 4>{}, one);
    default:
      refuse("causal_convolution", "has 2, 3 or 4 taps on a GPU");
  }
}

template <int V>
dim3 grid_of(const Sizes& s) {
  return dim3(static_cast<unsigned>(divide_up(s.channels, 32 * V)),
              static_cast<unsigned>(divide_up(s.tokens, block_tokens)));
}
const dim3 block_shape(32, runs_per_block);

}  // namespace

void causal_convolution(Stream& stream, const CausalConvolution& op) {
  constexpr const char* name = "causal_convolution";
  check_arguments(name, op);
  const Sizes sizes = sizes_of(name, op);
  if (sizes.tokens == 0) return;
  with_storage_and(name, op.x.dtype, op.weight.dtype, [&](auto t, auto w) {
    using T = typename decltype(t)::type;
    using W = typename decltype(w)::type;
    with_taps<wide_channels<T>>(columns_of(op.weight), wide(sizes, op, {&op.x, &op.y}), [&](auto taps, auto v) {
      constexpr int V = decltype(v)::value;
      forward_kernel<decltype(taps)::value, V, T, W>
          <<<grid_of<V>(sizes), block_shape, 0, cuda_stream(stream).handle()>>>(arguments<T, W>(sizes, op, {}, op.y));
      launched(name);
    });
  });
}

void causal_convolution_backward(Stream& stream, const CausalConvolutionBackward& op) {
  constexpr const char* name = "causal_convolution_backward";
  check_arguments(name, op);
  const CausalConvolution& f = op.forward;
  const Sizes sizes = sizes_of(name, f);
  if (sizes.tokens == 0) return;
  with_storage_and(name, f.x.dtype, f.weight.dtype, [&](auto t, auto w) {
    using T = typename decltype(t)::type;
    using W = typename decltype(w)::type;
    with_taps<wide_channels<T>>(columns_of(f.weight), wide(sizes, f, {&f.x, &op.dy, &op.dx}), [&](auto taps, auto v) {
      constexpr int V = decltype(v)::value;
      backward_kernel<decltype(taps)::value, V, T, W>
          <<<grid_of<V>(sizes), block_shape, 0, cuda_stream(stream).handle()>>>(
              arguments<T, W>(sizes, f, op.dy, op.dx));
      launched(name);
    });
  });
}

void causal_convolution_weight_gradient(Stream& stream, const CausalConvolutionWeightGradient& op) {
  constexpr const char* name = "causal_convolution_weight_gradient";
  check_arguments(name, op);
  const CausalConvolution& f = op.forward;
  const Sizes sizes = sizes_of(name, f);
  CudaStream& s = cuda_stream(stream);
  const std::int64_t runs = divide_up(sizes.tokens, block_tokens);
  float* parts = s.scratch_of<float>(std::max<std::int64_t>(runs, 1) * (columns_of(f.weight) + 1) * sizes.channels);
  with_storage_and(name, f.x.dtype, f.weight.dtype, [&](auto t, auto w) {
    using T = typename decltype(t)::type;
    using W = typename decltype(w)::type;
    with_taps<few_channels>(columns_of(f.weight), wide(sizes, f, {&f.x, &op.dy}), [&](auto count, auto v) {
      constexpr int taps = decltype(count)::value, V = decltype(v)::value;
      if (runs > 0) {
        weight_kernel<taps, V, T, W>
            <<<grid_of<V>(sizes), block_shape, 0, s.handle()>>>(arguments<T, W>(sizes, f, op.dy, {}), parts);
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
