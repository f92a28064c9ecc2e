// The indexer's own loss: a block per query (the loss, d(score), dq, dw), then a block per key, which adds up over the queries
// that chose it, in their order.
#include "weft/device/cuda/kernels/sparse.cuh"
#include "weft/device/cuda/table.h"

namespace weft::cuda {

namespace {

template <class T>
struct LossArguments {
  IndexerArguments<T> x;
  ChosenKeys chosen;
  Rows<const T> q, k;  // the attention's
  Rows<const float> lse;
  int heads, group, dim;
  float scale;
  Rows<T> dq, dk, dw;
  Rows<float> scratch;  // [T][K + 1]: gradients of the scores, then the query's loss
  const double* loss_scale;
  double factor;
  Rows<const float> means;  // [queries][K]: of those from `first` on; null: of all, from the attention
  int first, end;           // the queries of this rank
};

// p of key j, by a warp.
template <class T>
__device__ float mean_of_heads(const Rows<const T>& q, const Rows<const T>& k, const Rows<const float>& lse, int t,
                               int key, int heads, int group, int dim, float scale) {
  float sum = 0;
  for (int h = 0; h < heads; ++h)
    sum += expf(scale * warp_dot(q[t] + h * dim, k[key] + h / group * dim, dim) - lse[h][t]);
  return sum;
}

template <class T>
struct MeanArguments {
  ChosenKeys chosen;
  Rows<const T> q, k;
  Rows<const float> lse;
  int heads, group, dim;
  float scale, all_heads;
  Rows<float> means;
};

template <class T>
__global__ void means_kernel(MeanArguments<T> a) {
  const int t = static_cast<int>(blockIdx.x), me = static_cast<int>(threadIdx.x), n = a.chosen.count(t);
  const std::int32_t* keys = a.chosen.keys[t];
  for (int j = me / 32; j < a.chosen.K; j += sparse_warps) {
    const float sum =
        j < n ? mean_of_heads(a.q, a.k, a.lse, t, keys[j], a.heads, a.group, a.dim, a.scale) / a.all_heads : 0.0f;
    if (me % 32 == 0) a.means[t][j] = sum;
  }
}

template <class T>
__global__ void query_kernel(LossArguments<T> a) {
  extern __shared__ float shared[];  // [3][K]
  const IndexerArguments<T>& x = a.x;
  float *target = shared, *scores = target + a.chosen.K, *products = scores + a.chosen.K;
  const int t = static_cast<int>(blockIdx.x), me = static_cast<int>(threadIdx.x), n = a.chosen.count(t);
  const std::int32_t* keys = a.chosen.keys[t];
  float* dscores = a.scratch[t];
  if (t < a.first || t >= a.end) {  // another rank's
    for (int j = me; j <= a.chosen.K; j += sparse_threads) dscores[j] = 0;
    for (int e = me; e < x.heads * x.dim; e += sparse_threads) a.dq[t][e] = narrow<T>(0.0f);
    for (int h = me; h < x.heads; h += sparse_threads) a.dw[t][h] = narrow<T>(0.0f);
    return;
  }
  for (int j = me / 32; j < n; j += sparse_warps) {
    float score = 0;
    const float mean = a.means.data ? a.means[t - a.first][j]
                                    : mean_of_heads(a.q, a.k, a.lse, t, keys[j], a.heads, a.group, a.dim, a.scale) /
                                          static_cast<float>(a.heads);
    for (int h = 0; h < x.heads; ++h) {
      const float product = warp_dot(x.q[t] + h * x.dim, x.k[keys[j]], x.dim);
      score += x.scale * widen(x.w[t][h]) * (product > 0 ? product : 0.0f);
    }
    if (me % 32 == 0) {
      target[j] = mean;
      scores[j] = score;
    }
  }
  __syncthreads();
  float high = -INFINITY, sum = 0, loss = 0;
  for (int j = me; j < n; j += sparse_threads) high = fmaxf(high, scores[j]);
  high = block_max<sparse_threads>(high);
  for (int j = me; j < n; j += sparse_threads) sum += expf(scores[j] - high);
  sum = block_sum<sparse_threads>(sum);
  const float log_sum = n > 0 ? logf(sum) : 0.0f, factor = static_cast<float>(a.factor * *a.loss_scale);
  for (int j = me; j < n; j += sparse_threads) {
    const float p = target[j], log_r = scores[j] - high - log_sum;
    if (p > 0) loss += p * (logf(p) - log_r);
    scores[j] = dscores[j] = factor * (expf(log_r) - p);  // from here on the gradients
  }
  loss = block_sum<sparse_threads>(loss);
  if (me == 0) dscores[a.chosen.K] = loss;
  for (int h = 0; h < x.heads; ++h) {
    __syncthreads();
    for (int j = me / 32; j < n; j += sparse_warps) {
      const float product = warp_dot(x.q[t] + h * x.dim, x.k[keys[j]], x.dim);
      if (me % 32 == 0) products[j] = product > 0 ? product : 0.0f;
    }
    __syncthreads();
    const float weight = x.scale * widen(x.w[t][h]);
    for (int e = me; e < x.dim; e += sparse_threads) {
      float along = 0;
      for (int j = 0; j < n; ++j)
        if (products[j] > 0) along += weight * scores[j] * widen(x.k[keys[j]][e]);
      a.dq[t][h * x.dim + e] = narrow<T>(along);
    }
    float along = 0;
    for (int j = me; j < n; j += sparse_threads) along += scores[j] * products[j];
    along = block_sum<sparse_threads>(along);
    if (me == 0) a.dw[t][h] = narrow<T>(x.scale * along);
  }
}

template <int most, class T>
__global__ void key_kernel(LossArguments<T> a) {
  __shared__ float slopes[sparse_threads];
  const IndexerArguments<T>& x = a.x;
  const int key = static_cast<int>(blockIdx.x), me = static_cast<int>(threadIdx.x);
  float dk[most] = {};
  for_queries_of_key(a.chosen, key, [&](const Hits& hits) {
    for (int h = 0; h < x.heads; ++h) {
      __syncthreads();
      for (int i = me / 32; i < hits.count; i += sparse_warps) {
        const int t = hits.query[i];
        const float product = warp_dot(x.q[t] + h * x.dim, x.k[key], x.dim);
        if (me % 32 == 0) slopes[i] = product > 0 ? x.scale * widen(x.w[t][h]) * a.scratch[t][hits.place[i]] : 0.0f;
      }
      __syncthreads();
#pragma unroll
      for (int c = 0; c < most; ++c) {
        const int e = me + c * sparse_threads;
        if (e < x.dim)
          for (int i = 0; i < hits.count; ++i) dk[c] += slopes[i] * widen(x.q[hits.query[i]][h * x.dim + e]);
      }
    }
  });
#pragma unroll
  for (int c = 0; c < most; ++c) {
    const int e = me + c * sparse_threads;
    if (e < x.dim) a.dk[key][e] = narrow<T>(dk[c]);
  }
}

// One block: the losses of queries, each thread's in their order, then thread by thread.
__global__ void loss_kernel(Rows<const float> scratch, int tokens, int K, const double* scale, double factor,
                            float* loss, bool add) {
  double sum = 0;
  for (int t = static_cast<int>(threadIdx.x); t < tokens; t += sparse_threads)
    sum += static_cast<double>(scratch[t][K]);
  sum = block_sum<sparse_threads>(sum);
  if (threadIdx.x == 0) *loss = static_cast<float>(factor * *scale * sum) + (add ? *loss : 0.0f);
}

}  // namespace

void attention_means(Stream& stream, const AttentionMeans& op) {
  constexpr const char* name = "attention_means";
  check_arguments(name, op);
  const Attention& a = op.attention.attention;
  const ChosenKeys chosen = chosen_keys(name, op.attention);
  if (a.q.rows() == 0) return;
  with_storage(name, a.q.dtype, [&](auto type) {
    using T = typename decltype(type)::type;
    const MeanArguments<T> arguments{chosen,
                                     rows_of<const T>(a.q),
                                     rows_of<const T>(a.k),
                                     rows_of<const float>(a.lse),
                                     static_cast<int>(a.heads),
                                     static_cast<int>(a.heads / a.kv_heads),
                                     static_cast<int>(a.dim),
                                     static_cast<float>(a.scale),
                                     static_cast<float>(op.heads),
                                     rows_of<float>(op.means)};
    run_sparse(name, cuda_stream(stream), means_kernel<T>, dim3(static_cast<unsigned>(a.q.rows())), 0, arguments);
  });
}

void indexer_loss(Stream& stream, const IndexerLoss& op) {
  constexpr const char* name = "indexer_loss";
  const Indexer& x = op.indexer;
  const Attention& a = op.attention.attention;
  const std::int64_t tokens = x.q.rows();
  check_arguments(name, op);
  const ChosenKeys chosen = chosen_keys(name, op.attention);
  const bool given = op.means.given();
  const auto fits = [](bool condition, const char* why) { require(condition, name, why); };
  fits(op.scale.dtype == DType::f64, "the scale is not f64");
  fits(x.dim <= 1024, "GPUs do not support indexers of more than 1024 dims yet");
  CudaStream& s = cuda_stream(stream);
  with_storage(name, x.q.dtype, [&](auto type) {
    using T = typename decltype(type)::type;
    const LossArguments<T> arguments{indexer_arguments<T>(x),
                                     chosen,
                                     rows_of<const T>(a.q),
                                     rows_of<const T>(a.k),
                                     rows_of<const float>(a.lse),
                                     static_cast<int>(a.heads),
                                     static_cast<int>(a.heads / a.kv_heads),
                                     static_cast<int>(a.dim),
                                     static_cast<float>(a.scale),
                                     rows_of<T>(op.dq),
                                     rows_of<T>(op.dk),
                                     rows_of<T>(op.dw),
                                     rows_of<float>(op.scratch),
                                     op.scale.as<double>(),
                                     op.factor,
                                     given ? rows_of<const float>(op.means) : Rows<const float>{},
                                     static_cast<int>(op.first),
                                     static_cast<int>(given ? op.first + op.queries : tokens)};
    if (tokens > 0) {
      const dim3 grid(static_cast<unsigned>(tokens));
      run_sparse(name, s, query_kernel<T>, grid, 3 * static_cast<std::int64_t>(chosen.K), arguments);
      if (x.dim <= sparse_threads)
        run_sparse(name, s, key_kernel<1, T>, grid, 0, arguments);
      else
        run_sparse(name, s, key_kernel<4, T>, grid, 0, arguments);
    }
  });
  loss_kernel<<<1, sparse_threads, 0, s.handle()>>>(rows_of<const float>(op.scratch), static_cast<int>(tokens),
                                                    chosen.K, op.scale.as<double>(), op.factor, op.loss.as<float>(),
                                                    op.store == Store::add);
  launched(name);
}

}  // namespace weft::cuda
