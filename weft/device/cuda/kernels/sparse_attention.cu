// Attention over chosen keys: a block for each query and head; in backward another for each key and kv head, which adds up
// over the queries that chose it, in their order.
#include "weft/device/cuda/kernels/sparse.cuh"
#include "weft/device/cuda/table.h"

namespace weft::cuda {

namespace {

template <class T>
struct SparseArguments {
  ChosenKeys chosen;
  Rows<const T> q, k, v;
  Rows<T> out;
  Rows<float> lse;
  int heads, group, dim, value_dim;
  float scale;
};

template <class T>
struct SparseGradients {
  Rows<const T> dout;
  Rows<T> dq, dk, dv;
  Rows<float> delta;
};

template <class T>
__global__ void forward_kernel(SparseArguments<T> x) {
  extern __shared__ float scores[];  // [K]
  const int t = static_cast<int>(blockIdx.x), head = static_cast<int>(blockIdx.y), kv = head / x.group;
  const int me = static_cast<int>(threadIdx.x), n = x.chosen.count(t);
  const std::int32_t* keys = x.chosen.keys[t];
  const T* q = x.q[t] + head * x.dim;
  float high = -INFINITY, sum = 0;
  for (int j = me / 32; j < n; j += sparse_warps) {
    const float score = x.scale * warp_dot(q, x.k[keys[j]] + kv * x.dim, x.dim);
    if (me % 32 == 0) scores[j] = score;
    high = fmaxf(high, score);
  }
  high = block_max<sparse_threads>(high);
  for (int j = me; j < n; j += sparse_threads) {
    const float p = expf(scores[j] - high);
    scores[j] = p;
    sum += p;
  }
  sum = block_sum<sparse_threads>(sum);
  for (int e = me; e < x.value_dim; e += sparse_threads) {
    float value = 0;
    for (int j = 0; j < n; ++j) value += scores[j] * widen(x.v[keys[j]][kv * x.value_dim + e]);
    x.out[t][head * x.value_dim + e] = narrow<T>(n > 0 ? value / sum : 0.0f);
  }
  if (me == 0) x.lse[head][t] = high + logf(sum);
}

// Probability of one query and key, and the gradient of its score; for all lanes of a warp.
template <class T>
__device__ void score_gradient(const SparseArguments<T>& x, const SparseGradients<T>& g, int t, int head, int key,
                               float delta, float& p, float& ds) {
  const int kv = head / x.group;
  const float product = warp_dot(x.q[t] + head * x.dim, x.k[key] + kv * x.dim, x.dim);
  const float along = warp_dot(g.dout[t] + head * x.value_dim, x.v[key] + kv * x.value_dim, x.value_dim);
  p = expf(x.scale * product - x.lse[head][t]);
  ds = x.scale * p * (along - delta);
}

template <class T>
__global__ void query_kernel(SparseArguments<T> x, SparseGradients<T> g) {
  extern __shared__ float slopes[];  // [K]
  __shared__ float delta_of_query;
  const int t = static_cast<int>(blockIdx.x), head = static_cast<int>(blockIdx.y), kv = head / x.group;
  const int me = static_cast<int>(threadIdx.x), n = x.chosen.count(t);
  const std::int32_t* keys = x.chosen.keys[t];
  if (me < 32) {
    float delta = 0;
    for (int e = me; e < x.value_dim; e += 32)
      delta += widen(g.dout[t][head * x.value_dim + e]) * widen(x.out[t][head * x.value_dim + e]);
    delta = warp_sum(delta);
    if (me == 0) g.delta[head][t] = delta_of_query = delta;
  }
  __syncthreads();
  for (int j = me / 32; j < n; j += sparse_warps) {
    float p, ds;
    score_gradient(x, g, t, head, keys[j], delta_of_query, p, ds);
    if (me % 32 == 0) slopes[j] = ds;
  }
  __syncthreads();
  for (int e = me; e < x.dim; e += sparse_threads) {
    float sum = 0;
    for (int j = 0; j < n; ++j) sum += slopes[j] * widen(x.k[keys[j]][kv * x.dim + e]);
    g.dq[t][head * x.dim + e] = narrow<T>(sum);
  }
}

// After query_kernel, which leaves delta.
template <int most, class T>
__global__ void key_kernel(SparseArguments<T> x, SparseGradients<T> g) {
  __shared__ float ps[sparse_threads], slopes[sparse_threads];
  const int key = static_cast<int>(blockIdx.x), kv = static_cast<int>(blockIdx.y), me = static_cast<int>(threadIdx.x);
  float dk[most] = {}, dv[most] = {};
  for_queries_of_key(x.chosen, key, [&](const Hits& hits) {
    for (int head = kv * x.group; head < (kv + 1) * x.group; ++head) {
      __syncthreads();
      for (int i = me / 32; i < hits.count; i += sparse_warps) {
        const int t = hits.query[i];
        float p, ds;
        score_gradient(x, g, t, head, key, g.delta[head][t], p, ds);
        if (me % 32 == 0) {
          ps[i] = p;
          slopes[i] = ds;
        }
      }
      __syncthreads();
#pragma unroll
      for (int c = 0; c < most; ++c) {
        const int e = me + c * sparse_threads;
        if (e < x.dim)
          for (int i = 0; i < hits.count; ++i) dk[c] += slopes[i] * widen(x.q[hits.query[i]][head * x.dim + e]);
        if (e < x.value_dim)
          for (int i = 0; i < hits.count; ++i) dv[c] += ps[i] * widen(g.dout[hits.query[i]][head * x.value_dim + e]);
      }
    }
  });
#pragma unroll
  for (int c = 0; c < most; ++c) {
    const int e = me + c * sparse_threads;
    if (e < x.dim) g.dk[key][kv * x.dim + e] = narrow<T>(dk[c]);
    if (e < x.value_dim) g.dv[key][kv * x.value_dim + e] = narrow<T>(dv[c]);
  }
}

template <class T>
SparseArguments<T> arguments(const ChosenKeys& chosen, const Attention& x) {
  return {chosen,
          rows_of<const T>(x.q),
          rows_of<const T>(x.k),
          rows_of<const T>(x.v),
          rows_of<T>(x.out),
          rows_of<float>(x.lse),
          static_cast<int>(x.heads),
          static_cast<int>(x.heads / x.kv_heads),
          static_cast<int>(x.dim),
          static_cast<int>(x.value_dim),
          static_cast<float>(x.scale)};
}

}  // namespace

void sparse_attention(Stream& stream, const SparseAttention& op) {
  constexpr const char* name = "sparse_attention";
  const Attention& x = op.attention;
  if (x.q.rows() == 0) return;
  check_arguments(name, op);
  const ChosenKeys chosen = chosen_keys(name, op);
  with_storage(name, x.q.dtype, [&](auto type) {
    using T = typename decltype(type)::type;
    run_sparse(name, cuda_stream(stream), forward_kernel<T>,
               dim3(static_cast<unsigned>(x.q.rows()), static_cast<unsigned>(x.heads)), chosen.K,
               arguments<T>(chosen, x));
  });
}

void sparse_attention_backward(Stream& stream, const SparseAttentionBackward& op) {
  constexpr const char* name = "sparse_attention_backward";
  const Attention& x = op.forward.attention;
  if (x.q.rows() == 0) return;
  check_arguments(name, op);
  const ChosenKeys chosen = chosen_keys(name, op.forward);
  require(x.dim <= 1024 && x.value_dim <= 1024, name, "GPUs do not support head dims above 1024 yet");
  with_storage(name, x.q.dtype, [&](auto type) {
    using T = typename decltype(type)::type;
    CudaStream& s = cuda_stream(stream);
    const SparseArguments<T> a = arguments<T>(chosen, x);
    const SparseGradients<T> g{rows_of<const T>(op.dout), rows_of<T>(op.dq), rows_of<T>(op.dk), rows_of<T>(op.dv),
                               rows_of<float>(op.scratch)};
    const auto tokens = static_cast<unsigned>(x.q.rows());
    run_sparse(name, s, query_kernel<T>, dim3(tokens, static_cast<unsigned>(x.heads)), chosen.K, a, g);
    const dim3 of_keys(tokens, static_cast<unsigned>(x.kv_heads));
    if (std::max(x.dim, x.value_dim) <= sparse_threads)
      run_sparse(name, s, key_kernel<1, T>, of_keys, 0, a, g);
    else
      run_sparse(name, s, key_kernel<4, T>, of_keys, 0, a, g);
  });
}

}  // namespace weft::cuda
