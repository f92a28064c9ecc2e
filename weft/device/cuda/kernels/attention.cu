// attention and its backward, whole or by blocks of keys, in plain f32 arithmetic, for any head dim up to 256: blocks of 32 queries and 32 keys, a
// running maximum and sum. Backward: one kernel for the gradients of keys and values, one for that of queries, so that
// every sum belongs to one block and has one order.
#include "weft/device/argument_checks.h"
#include "weft/device/argument_checks_block.h"
#include "weft/device/cuda/fused_attention.h"
#include "weft/device/cuda/kernels/attention.cuh"
#include "weft/device/cuda/kernels/launch.cuh"
#include "weft/device/cuda/kernels/reduce.cuh"
#include "weft/device/cuda/table.h"

namespace weft::cuda {

namespace {

constexpr int block = 32, threads = 256, side = threads / block;  // `side` threads share a row

// Rows [first, first + block) of one head as float, zeros from `end` on.
template <class T>
__device__ void load_rows(float* to, const Rows<const T>& x, int head, int dim, int first, int end) {
  for (int i = threadIdx.x; i < block * dim; i += threads) {
    const int r = i / dim, c = i % dim;
    to[r * (dim + 1) + c] = first + r < end ? widen(x[first + r][head * dim + c]) : 0.0f;
  }
}

__device__ float dot(const float* x, const float* y, int dim) {
  float sum = 0;
  for (int i = 0; i < dim; ++i) sum += x[i] * y[i];
  return sum;
}

__device__ float row_max(float x) {
#pragma unroll
  for (int step = side / 2; step > 0; step /= 2) x = fmaxf(x, __shfl_xor_sync(all_lanes, x, step));
  return x;
}
__device__ float row_sum(float x) {
#pragma unroll
  for (int step = side / 2; step > 0; step /= 2) x += __shfl_xor_sync(all_lanes, x, step);
  return x;
}

template <int most, class T, class O>
__global__ void __launch_bounds__(threads) forward_kernel(AttentionArguments<T, O> x) {
  extern __shared__ float shared[];
  const int head = static_cast<int>(blockIdx.y), kv_head = head / x.group;
  const int first = static_cast<int>(gridDim.x - 1 - blockIdx.x) * block;  // later queries see more keys: they go first
  float *q = shared, *k = q + block * (x.dim + 1), *v = k + block * (x.dim + 1), *p = v + block * (x.value_dim + 1);
  const int row = static_cast<int>(threadIdx.x) / side, lane = static_cast<int>(threadIdx.x) % side;
  const int t = first + row, last = x.limits.upper(min(first + block, x.tokens) - 1);
  const int lower = t < x.tokens ? x.limits.lower(t) : 0, upper = t < x.tokens ? x.limits.upper(t) : -1;
  load_rows(q, x.q, head, x.dim, first, x.tokens);
  float top = x.sinks != nullptr ? x.sink(head) : lowest, sum = x.sinks != nullptr ? 1.0f : 0.0f, out[most] = {};
  if (x.more && t < x.tokens && x.lse[head][t] > lowest) {  // together they are like one key, whose score is their lse
    top = x.lse[head][t];
    sum = 1;
#pragma unroll
    for (int j = 0; j < most; ++j)
      if (lane + side * j < x.value_dim) out[j] = widen(x.out[t][head * x.value_dim + lane + side * j]);
  }
  for (int key = x.limits.lower(first) / block * block; key <= last; key += block) {
    __syncthreads();
    load_rows(k, x.k, kv_head, x.dim, key, x.keys);
    load_rows(v, x.v, kv_head, x.value_dim, key, x.keys);
    __syncthreads();
    float score[block / side], high = top;
#pragma unroll
    for (int j = 0; j < block / side; ++j) {
      const int c = lane + side * j;
      const bool seen = key + c >= lower && key + c <= upper;
      score[j] = seen ? x.scale * dot(q + row * (x.dim + 1), k + c * (x.dim + 1), x.dim) : -INFINITY;
      high = fmaxf(high, score[j]);
    }
    high = row_max(high);
    const float factor = expf(top - high);
    float part = 0;
#pragma unroll
    for (int j = 0; j < block / side; ++j) {
      const float probability = expf(score[j] - high);
      p[row * (block + 1) + lane + side * j] = probability;
      part += probability;
    }
    sum = sum * factor + row_sum(part);
    top = high;
    __syncwarp();  // a row belongs to one warp
#pragma unroll
    for (int j = 0; j < most; ++j) {
      const int c = lane + side * j;
      if (c < x.value_dim) {
        float value = out[j] * factor;
        for (int i = 0; i < block; ++i) value += p[row * (block + 1) + i] * v[i * (x.value_dim + 1) + c];
        out[j] = value;
      }
    }
  }
  if (t >= x.tokens) return;
#pragma unroll
  for (int j = 0; j < most; ++j) {
    const int c = lane + side * j;
    if (c < x.value_dim) x.out[t][head * x.value_dim + c] = narrow<O>(sum > 0 ? out[j] / sum : 0.0f);
  }
  if (lane == 0) x.lse[head][t] = sum > 0 ? top + logf(sum) : -INFINITY;
}

// delta = dout . out: a warp for each token and head.
template <class T, class O>
__global__ void delta_kernel(AttentionArguments<T, O> x, AttentionGradients<T> g) {
  const std::int64_t index = blockIdx.x * 8ll + threadIdx.y;
  if (index >= static_cast<std::int64_t>(x.tokens) * x.heads) return;
  const std::int64_t t = index / x.heads, head = index % x.heads;
  float sum = 0;
  for (int c = threadIdx.x; c < x.value_dim; c += 32)
    sum += widen(x.out[t][head * x.value_dim + c]) * widen(g.dout[t][head * x.value_dim + c]);
  sum = warp_sum(sum);
  if (threadIdx.x == 0) g.delta[head][t] = sum;
}

// dsink = - sum over tokens of exp(sink - lse) delta. A block for each head.
template <class T, class O>
__global__ void sink_kernel(AttentionArguments<T, O> x, AttentionGradients<T> g, float* dsinks) {
  const int head = static_cast<int>(blockIdx.x);
  double sum = 0;
  for (int t = threadIdx.x; t < x.tokens; t += threads)
    sum += static_cast<double>(expf(x.sink(head) - x.lse[head][t]) * g.delta[head][t]);
  sum = block_sum<threads>(sum);
  if (threadIdx.x == 0) dsinks[head] = static_cast<float>(-sum);
}

struct BackwardTiles {
  float *q, *k, *v, *dout, *p, *ds;
  __device__ BackwardTiles(float* shared, int dim, int value_dim)
      : q(shared),
        k(q + block * (dim + 1)),
        v(k + block * (dim + 1)),
        dout(v + block * (value_dim + 1)),
        p(dout + block * (value_dim + 1)),
        ds(p + block * (block + 1)) {}
  static std::size_t bytes(int dim, int value_dim) {
    return static_cast<std::size_t>(2 * block * (dim + 1) + 2 * block * (value_dim + 1) + 2 * block * (block + 1)) *
           sizeof(float);
  }
};

template <class O>
__device__ void put(O& to, float value, bool add) {
  to = narrow<O>(add ? widen(to) + value : value);
}

// Probabilities and gradients of scores, [queries][keys], of the tiles in shared memory.
template <class T, class O>
__device__ void score_gradients(const AttentionArguments<T, O>& x, const AttentionGradients<T, O>& g,
                                const BackwardTiles& s, int head, int query, int key) {
  const int row = static_cast<int>(threadIdx.x) / side, lane = static_cast<int>(threadIdx.x) % side, t = query + row;
  const bool real = t < x.tokens;
  const int lower = real ? x.limits.lower(t) : 0, upper = real ? x.limits.upper(t) : -1;
  const float lse = real ? x.lse[head][t] : 0, delta = real ? g.delta[head][t] : 0;
#pragma unroll
  for (int j = 0; j < block / side; ++j) {
    const int c = lane + side * j;
    float p = 0, ds = 0;
    if (key + c >= lower && key + c <= upper) {
      p = expf(x.scale * dot(s.q + row * (x.dim + 1), s.k + c * (x.dim + 1), x.dim) - lse);
      ds = p * (dot(s.dout + row * (x.value_dim + 1), s.v + c * (x.value_dim + 1), x.value_dim) - delta);
    }
    s.p[row * (block + 1) + c] = p;
    s.ds[row * (block + 1) + c] = ds;
  }
}

template <int most, class T, class O>
__global__ void __launch_bounds__(threads) key_gradients(AttentionArguments<T, O> x, AttentionGradients<T, O> g) {
  extern __shared__ float shared[];
  const BackwardTiles s(shared, x.dim, x.value_dim);
  const int kv_head = static_cast<int>(blockIdx.y), key = static_cast<int>(blockIdx.x) * block;
  const int row = static_cast<int>(threadIdx.x) / side, lane = static_cast<int>(threadIdx.x) % side;
  load_rows(s.k, x.k, kv_head, x.dim, key, x.keys);
  load_rows(s.v, x.v, kv_head, x.value_dim, key, x.keys);
  float dk[most] = {}, dv[most] = {};
  const bool numbered = x.limits.ends != nullptr;  // otherwise no query before the first key sees any of these
  for (int head = kv_head * x.group; head < (kv_head + 1) * x.group; ++head)
    for (int query = numbered ? 0 : key; query < x.tokens && x.limits.lower(query) < key + block; query += block) {
      if (numbered && x.limits.upper(min(query + block, x.tokens) - 1) < key) continue;
      __syncthreads();
      load_rows(s.q, x.q, head, x.dim, query, x.tokens);
      load_rows(s.dout, g.dout, head, x.value_dim, query, x.tokens);
      __syncthreads();
      score_gradients(x, g, s, head, query, key);
      __syncthreads();
#pragma unroll
      for (int j = 0; j < most; ++j) {
        const int c = lane + side * j;
        if (c < x.dim)
          for (int i = 0; i < block; ++i) dk[j] += s.ds[i * (block + 1) + row] * s.q[i * (x.dim + 1) + c];
        if (c < x.value_dim)
          for (int i = 0; i < block; ++i) dv[j] += s.p[i * (block + 1) + row] * s.dout[i * (x.value_dim + 1) + c];
      }
    }
  const int t = key + row;
  if (t >= x.keys) return;
#pragma unroll
  for (int j = 0; j < most; ++j) {
    const int c = lane + side * j;
    if (c < x.dim) put(g.dk[t][kv_head * x.dim + c], x.scale * dk[j], g.add_keys);
    if (c < x.value_dim) put(g.dv[t][kv_head * x.value_dim + c], dv[j], g.add_keys);
  }
}

template <int most, class T, class O>
__global__ void __launch_bounds__(threads) query_gradients(AttentionArguments<T, O> x, AttentionGradients<T, O> g) {
  extern __shared__ float shared[];
  const BackwardTiles s(shared, x.dim, x.value_dim);
  const int head = static_cast<int>(blockIdx.y), kv_head = head / x.group;
  const int query = static_cast<int>(gridDim.x - 1 - blockIdx.x) * block;
  const int last = x.limits.upper(min(query + block, x.tokens) - 1);
  const int row = static_cast<int>(threadIdx.x) / side, lane = static_cast<int>(threadIdx.x) % side;
  load_rows(s.q, x.q, head, x.dim, query, x.tokens);
  load_rows(s.dout, g.dout, head, x.value_dim, query, x.tokens);
  float dq[most] = {};
  for (int key = x.limits.lower(query) / block * block; key <= last; key += block) {
    __syncthreads();
    load_rows(s.k, x.k, kv_head, x.dim, key, x.keys);
    load_rows(s.v, x.v, kv_head, x.value_dim, key, x.keys);
    __syncthreads();
    score_gradients(x, g, s, head, query, key);
    __syncwarp();
#pragma unroll
    for (int j = 0; j < most; ++j) {
      const int c = lane + side * j;
      if (c < x.dim)
        for (int i = 0; i < block; ++i) dq[j] += s.ds[row * (block + 1) + i] * s.k[i * (x.dim + 1) + c];
    }
  }
  const int t = query + row;
  if (t >= x.tokens) return;
#pragma unroll
  for (int j = 0; j < most; ++j) {
    const int c = lane + side * j;
    if (c < x.dim) put(g.dq[t][head * x.dim + c], x.scale * dq[j], g.add_queries);
  }
}

// What only a GPU demands.
template <class Operation>
void check_fits(const char* name, const Operation& op) {
  require(op.dim <= 256 && op.value_dim <= 256, name, "GPUs do not support head dims above 256 yet");
  require(!op.sinks.given() || op.sinks.dtype == DType::f32 || op.sinks.dtype == DType::bf16, name,
          "sinks is not f32 or bf16");
}

template <class T>
AttentionArguments<T> arguments_of(const Attention& op) {
  return {rows_of<const T>(op.q),
          rows_of<const T>(op.k),
          rows_of<const T>(op.v),
          rows_of<T>(op.out),
          rows_of<float>(op.lse),
          optional<const void>(op.sinks),
          op.sinks.dtype == DType::f32,
          {optional<const std::int32_t>(op.boundaries), static_cast<int>(op.length), static_cast<int>(op.window)},
          static_cast<int>(op.q.rows()),
          static_cast<int>(op.heads),
          static_cast<int>(op.heads / op.kv_heads),
          static_cast<int>(op.dim),
          static_cast<int>(op.value_dim),
          static_cast<float>(op.scale),
          static_cast<int>(op.q.rows())};
}

template <class T>
AttentionArguments<T, float> arguments_of(const AttentionBlock& op) {
  AttentionArguments<T, float> x;
  x.q = rows_of<const T>(op.q), x.k = rows_of<const T>(op.k), x.v = rows_of<const T>(op.v);
  if (op.out.given()) x.out = rows_of<float>(op.out);
  x.lse = rows_of<float>(op.lse);
  x.sinks = optional<const void>(op.sinks);
  x.single_sinks = op.sinks.dtype == DType::f32;
  x.limits = {nullptr, 0, 0, op.first.as<std::int32_t>(), op.end.as<std::int32_t>()};
  x.tokens = static_cast<int>(op.q.rows());
  x.heads = static_cast<int>(op.heads);
  x.group = static_cast<int>(op.heads / op.kv_heads);
  x.dim = static_cast<int>(op.dim);
  x.value_dim = static_cast<int>(op.value_dim);
  x.scale = static_cast<float>(op.scale);
  x.keys = static_cast<int>(op.k.rows());
  x.more = op.store == Store::add;
  return x;
}

// body(most): elements of a row that one of its threads keeps at most.
template <class Operation, class Body>
void with_most(const Operation& op, const Body& body) {
  if (std::max(op.dim, op.value_dim) <= 128)
    body(std::integral_constant<int, 16>{});
  else
    body(std::integral_constant<int, 32>{});
}

template <class Kernel, class... Arguments>
void run(const char* name, CudaStream& stream, const Kernel& kernel, dim3 grid, std::size_t shared,
         const Arguments&... arguments) {
  launch_shared(name, stream, kernel, grid, threads, static_cast<int>(shared), arguments...);
}

}  // namespace

void attention(Stream& stream, const Attention& op) {
  constexpr const char* name = "attention";
  if (op.q.rows() == 0) return;
  check_arguments(name, op);
  check_fits(name, op);
  CudaStream& s = cuda_stream(stream);
  if (s.attention() != nullptr && s.attention()->forward(s, op)) return;
  const auto tiles = static_cast<unsigned>(divide_up(op.q.rows(), block));
  with_storage(name, op.q.dtype, [&](auto type) {
    using T = typename decltype(type)::type;
    const AttentionArguments<T> x = arguments_of<T>(op);
    if constexpr (std::is_same_v<T, bf16>)
      if (tensor_attention(s, op, x)) return;
    const auto shared =
        static_cast<std::size_t>(2 * block * (x.dim + 1) + block * (x.value_dim + 1) + block * (block + 1)) *
        sizeof(float);
    with_most(op, [&](auto most) {
      run(name, s, forward_kernel<decltype(most)::value, T, T>, dim3(tiles, static_cast<unsigned>(op.heads)), shared,
          x);
    });
  });
}

void attention_backward(Stream& stream, const AttentionBackward& op) {
  constexpr const char* name = "attention_backward";
  const Attention& f = op.forward;
  if (f.q.rows() == 0) return;
  check_arguments(name, op);
  check_fits(name, f);
  CudaStream& s = cuda_stream(stream);
  if (s.attention() != nullptr && s.attention()->backward(s, op)) return;
  const auto tiles = static_cast<unsigned>(divide_up(f.q.rows(), block));
  with_storage(name, f.q.dtype, [&](auto type) {
    using T = typename decltype(type)::type;
    const AttentionArguments<T> x = arguments_of<T>(f);
    const AttentionGradients<T> g{rows_of<const T>(op.dout), rows_of<T>(op.dq), rows_of<T>(op.dk), rows_of<T>(op.dv),
                                  rows_of<float>(op.scratch)};
    delta_kernel<T, T><<<static_cast<unsigned>(divide_up(f.q.rows() * f.heads, 8)), dim3(32, 8), 0, s.handle()>>>(x, g);
    launched(name);
    if (op.dsinks.given()) {
      sink_kernel<T, T><<<static_cast<unsigned>(f.heads), threads, 0, s.handle()>>>(x, g, op.dsinks.as<float>());
      launched(name);
    }
    if constexpr (std::is_same_v<T, bf16>)
      if (tensor_attention_backward(s, op, x, g)) return;
    const std::size_t shared = BackwardTiles::bytes(x.dim, x.value_dim);
    with_most(f, [&](auto most) {
      constexpr int n = decltype(most)::value;
      run(name, s, key_gradients<n, T, T>, dim3(tiles, static_cast<unsigned>(f.kv_heads)), shared, x, g);
      run(name, s, query_gradients<n, T, T>, dim3(tiles, static_cast<unsigned>(f.heads)), shared, x, g);
    });
  });
}

void attention_block(Stream& stream, const AttentionBlock& op) {
  constexpr const char* name = "attention_block";
  if (op.q.rows() == 0) return;
  check_arguments(name, op);
  check_fits(name, op);
  CudaStream& s = cuda_stream(stream);
  with_storage(name, op.q.dtype, [&](auto type) {
    using T = typename decltype(type)::type;
    const AttentionArguments<T, float> x = arguments_of<T>(op);
    const auto shared =
        static_cast<std::size_t>(2 * block * (x.dim + 1) + block * (x.value_dim + 1) + block * (block + 1)) *
        sizeof(float);
    const dim3 grid(static_cast<unsigned>(divide_up(op.q.rows(), block)), static_cast<unsigned>(op.heads));
    with_most(op, [&](auto most) { run(name, s, forward_kernel<decltype(most)::value, T, float>, grid, shared, x); });
  });
}

void attention_delta(Stream& stream, const AttentionDelta& op) {
  constexpr const char* name = "attention_delta";
  if (op.dout.rows() == 0) return;
  check_arguments(name, op);
  require(!op.sinks.given() || op.sinks.dtype == DType::f32 || op.sinks.dtype == DType::bf16, name,
          "sinks is not f32 or bf16");
  CudaStream& s = cuda_stream(stream);
  with_storage(name, op.dout.dtype, [&](auto type) {
    using T = typename decltype(type)::type;
    const auto all = [&](auto result) {
      using O = typename decltype(result)::type;
      AttentionArguments<T, O> x{};
      x.out = rows_of<O>(op.out);
      x.lse = rows_of<float>(op.lse);
      x.sinks = optional<const void>(op.sinks);
      x.single_sinks = op.sinks.dtype == DType::f32;
      x.tokens = static_cast<int>(op.dout.rows());
      x.heads = static_cast<int>(op.heads);
      x.value_dim = static_cast<int>(op.value_dim);
      AttentionGradients<T> g{};
      g.dout = rows_of<const T>(op.dout);
      g.delta = rows_of<float>(op.delta);
      const auto blocks = static_cast<unsigned>(divide_up(op.dout.rows() * op.heads, 8));
      delta_kernel<T, O><<<blocks, dim3(32, 8), 0, s.handle()>>>(x, g);
      launched(name);
      if (!op.dsinks.given()) return;
      sink_kernel<T, O><<<static_cast<unsigned>(op.heads), threads, 0, s.handle()>>>(x, g, op.dsinks.as<float>());
      launched(name);
    };
    if (op.out.dtype == op.dout.dtype)
      all(std::type_identity<T>{});
    else
      all(std::type_identity<float>{});
  });
}

void attention_block_backward(Stream& stream, const AttentionBlockBackward& op) {
  constexpr const char* name = "attention_block_backward";
  const AttentionBlock& f = op.forward;
  if (f.q.rows() == 0) return;
  check_arguments(name, op);
  check_fits(name, f);
  CudaStream& s = cuda_stream(stream);
  with_storage(name, f.q.dtype, [&](auto type) {
    using T = typename decltype(type)::type;
    const AttentionArguments<T, float> x = arguments_of<T>(f);
    const AttentionGradients<T, float> g{
        rows_of<const T>(op.dout), rows_of<float>(op.dq),          rows_of<float>(op.dk),      rows_of<float>(op.dv),
        rows_of<float>(op.delta),  op.store_queries == Store::add, op.store_keys == Store::add};
    const std::size_t shared = BackwardTiles::bytes(x.dim, x.value_dim);
    const auto tiles = [](std::int64_t rows) { return static_cast<unsigned>(divide_up(rows, block)); };
    with_most(f, [&](auto most) {
      constexpr int n = decltype(most)::value;
      run(name, s, key_gradients<n, T, float>, dim3(tiles(f.k.rows()), static_cast<unsigned>(f.kv_heads)), shared, x,
          g);
      run(name, s, query_gradients<n, T, float>, dim3(tiles(f.q.rows()), static_cast<unsigned>(f.heads)), shared, x, g);
    });
  });
}

namespace {

__global__ void visible_keys_kernel(const std::int32_t* places, int queries, const std::int32_t* keys, int key_count,
                                    const std::int32_t* boundaries, int length, int window, std::int32_t* first,
                                    std::int32_t* end) {
  const int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (i >= queries) return;
  const int t = places[i], least = Limits{boundaries, length, window}.lower(t);
  // The number of keys below `bound`.
  const auto count_below = [&](int bound) {
    int low = 0, high = key_count;
    while (low < high) {
      const int middle = (low + high) / 2;
      if (keys[middle] < bound)
        low = middle + 1;
      else
        high = middle;
    }
    return low;
  };
  first[i] = count_below(least);
  end[i] = max(first[i], count_below(t + 1));
}

}  // namespace

void visible_keys(Stream& stream, const VisibleKeys& op) {
  constexpr const char* name = "visible_keys";
  check_arguments(name, op);
  const std::int64_t queries = op.places.shape.elements();
  if (queries == 0) return;
  visible_keys_kernel<<<static_cast<unsigned>(divide_up(queries, 256)), 256, 0, cuda_stream(stream).handle()>>>(
      op.places.as<std::int32_t>(), static_cast<int>(queries), op.key_places.as<std::int32_t>(),
      static_cast<int>(op.key_places.shape.elements()), optional<const std::int32_t>(op.boundaries),
      static_cast<int>(op.length), static_cast<int>(op.window), op.first.as<std::int32_t>(), op.end.as<std::int32_t>());
  launched(name);
}

}  // namespace weft::cuda
