// attention on tensor cores: bf16, head dims 64 and 128. A block takes 64 queries of one head, 16 per warp, and walks over
// the blocks of 64 keys that they see; the next block is on its way while one is worked on.
#include "weft/device/cuda/kernels/accumulators.cuh"
#include "weft/device/cuda/kernels/attention.cuh"
#include "weft/device/cuda/kernels/launch.cuh"

namespace weft::cuda {

namespace {

constexpr int queries = 64, keys = 64, threads = 128;
constexpr float log2_e = 1.4426950408889634f, ln_2 = 0.6931471805599453f;

// Rows [first, first + count) of one head, zeros from `end` on.
template <int dim, int count>
__device__ void copy_rows(bf16* to, const Rows<const bf16>& x, int head, int first, int end) {
  const SharedTile<dim / 8> tile{to};
#pragma unroll
  for (int i = 0; i < count * dim / 8 / threads; ++i) {
    const int index = i * threads + static_cast<int>(threadIdx.x), r = index / (dim / 8), chunk = index % (dim / 8);
    const bool valid = first + r < end;
    copy_async(tile.at(r, chunk), valid ? x[first + r] + head * dim + chunk * 8 : x.data, valid);
  }
}

// p += A B^T and dp += dA dB^T: a warp's 16 rows of A and dA, all rows of a block's B and dB.
template <int n, int chunks>
__device__ __forceinline__ void score_both(float (&p)[n][4], float (&dp)[n][4], const SharedTile<chunks>& A,
                                           const SharedTile<chunks>& dA, const SharedTile<chunks>& B,
                                           const SharedTile<chunks>& dB) {
  const int warp = static_cast<int>(threadIdx.x) / 32;
#pragma unroll
  for (int d = 0; d < chunks / 2; ++d) {
    unsigned a[4], da[4];
    load_a(a, A, warp * 16, d * 16);
    load_a(da, dA, warp * 16, d * 16);
#pragma unroll
    for (int j = 0; j < n / 2; ++j) {
      unsigned b[4];
      load_b(b, B, j * 16, d * 16);
      multiply_add(p[2 * j], a, b[0], b[1]);
      multiply_add(p[2 * j + 1], a, b[2], b[3]);
      load_b(b, dB, j * 16, d * 16);
      multiply_add(dp[2 * j], da, b[0], b[1]);
      multiply_add(dp[2 * j + 1], da, b[2], b[3]);
    }
  }
}

template <int dim>
__global__ void __launch_bounds__(threads) forward_kernel(AttentionArguments<bf16> x) {
  extern __shared__ __align__(128) unsigned char shared[];
  bf16* memory = reinterpret_cast<bf16*>(shared);
  const SharedTile<dim / 8> q_tile{memory};
  const auto k_tile = [&](int stage) { return memory + queries * dim + stage * 2 * keys * dim; };
  const auto v_tile = [&](int stage) { return k_tile(stage) + keys * dim; };
  const int head = static_cast<int>(blockIdx.y), kv_head = head / x.group;
  const int first = static_cast<int>(gridDim.x - 1 - blockIdx.x) * queries;  // those that see most keys go first
  const int last = min(first + queries, x.tokens) - 1;
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const int begin = x.limits.lower(first) / keys * keys, all_seen_from = x.limits.lower(last);

  copy_rows<dim, queries>(memory, x.q, head, first, x.tokens);
  copy_rows<dim, keys>(k_tile(0), x.k, kv_head, begin, x.tokens);
  copy_rows<dim, keys>(v_tile(0), x.v, kv_head, begin, x.tokens);
  commit_copies();

  // Two rows per thread: t and t + 8.
  int token[2], lower[2];
  float top[2], sum[2], out[dim / 8][4] = {};
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    token[h] = first + warp * 16 + lane / 4 + 8 * h;
    lower[h] = token[h] < x.tokens ? x.limits.lower(token[h]) : 0;
    top[h] = x.sinks != nullptr ? x.sink(head) * log2_e : lowest;
    sum[h] = x.sinks != nullptr && lane % 4 == 0 ? 1.0f : 0.0f;
  }
  const float scale = x.scale * log2_e;  // exponents are of 2
  unsigned q[dim / 16][4];
  int stage = 0;
  for (int key = begin; key <= last; key += keys, stage ^= 1) {
    wait_for_copies<0>();
    __syncthreads();
    if (key == begin)
#pragma unroll
      for (int d = 0; d < dim / 16; ++d) load_a(q[d], q_tile, warp * 16, d * 16);
    if (key + keys <= last) {
      copy_rows<dim, keys>(k_tile(stage ^ 1), x.k, kv_head, key + keys, x.tokens);
      copy_rows<dim, keys>(v_tile(stage ^ 1), x.v, kv_head, key + keys, x.tokens);
    }
    commit_copies();
    float score[keys / 8][4] = {};
    const SharedTile<dim / 8> k_now{k_tile(stage)}, v_now{v_tile(stage)};
#pragma unroll
    for (int d = 0; d < dim / 16; ++d) multiply_add(score, q[d], k_now, 0, d * 16);
    const bool masked = key + keys - 1 > first || key < all_seen_from;
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      float high = top[h];
#pragma unroll
      for (int j = 0; j < keys / 8; ++j)
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          float& s = score[j][2 * h + e];
          const int at = key + j * 8 + lane % 4 * 2 + e;
          s = masked && (at < lower[h] || at > token[h]) ? -INFINITY : s * scale;
          high = fmaxf(high, s);
        }
      high = max_of_quad(high);
      const float factor = exp2f(top[h] - high);
      top[h] = high;
      sum[h] *= factor;
#pragma unroll
      for (int j = 0; j < keys / 8; ++j)
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          float& s = score[j][2 * h + e];
          s = exp2f(s - high);
          sum[h] += s;
        }
      scale_row(out, h, factor);
    }
#pragma unroll
    for (int j = 0; j < keys / 16; ++j) {
      unsigned p[4];
      as_factor(p, score[2 * j], score[2 * j + 1]);
      multiply_add_transposed(out, p, v_now, 0, j * 16);
    }
  }
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const float total = sum_of_quad(sum[h]);
    if (token[h] >= x.tokens) continue;
    bf16* to = x.out[token[h]] + head * dim + lane % 4 * 2;
#pragma unroll
    for (int d = 0; d < dim / 8; ++d)
      *reinterpret_cast<unsigned*>(to + d * 8) = pack_pair(out[d][2 * h] / total, out[d][2 * h + 1] / total);
    if (lane % 4 == 0) x.lse[head][token[h]] = top[h] * ln_2 + logf(total);
  }
}

// Gradients of 64 keys and values of one kv head, 16 per warp: walks over the heads that share them and the blocks of 32
// queries that see them. Scores are kept transposed, [keys][queries].
constexpr int some_queries = 32;

// lse (times log2 e), delta and lower bounds of a block of queries; none of these queries sees a key where lower is huge.
struct QueryNumbers {
  float lse[some_queries], delta[some_queries];
  int lower[some_queries];
};

template <int dim>
__global__ void __launch_bounds__(threads) key_gradients(AttentionArguments<bf16> x, AttentionGradients<bf16> g) {
  extern __shared__ __align__(128) unsigned char shared[];
  __shared__ QueryNumbers numbers[2];
  bf16* memory = reinterpret_cast<bf16*>(shared);
  const SharedTile<dim / 8> k_tile{memory}, v_tile{memory + keys * dim};
  const auto q_tile = [&](int stage) { return memory + 2 * keys * dim + stage * 2 * some_queries * dim; };
  const auto o_tile = [&](int stage) { return q_tile(stage) + some_queries * dim; };
  const int kv_head = static_cast<int>(blockIdx.y), key = static_cast<int>(blockIdx.x) * keys;
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  // Queries [key, end) see some of these keys.
  int low = key, high = x.tokens;
  while (low < high) {
    const int middle = (low + high) / 2;
    if (x.limits.lower(middle) < key + keys)
      low = middle + 1;
    else
      high = middle;
  }
  const int blocks = (low - key + some_queries - 1) / some_queries, steps = blocks * x.group;

  const auto copy = [&](int step, int stage) {
    const int head = kv_head * x.group + step / blocks, query = key + step % blocks * some_queries;
    copy_rows<dim, some_queries>(q_tile(stage), x.q, head, query, x.tokens);
    copy_rows<dim, some_queries>(o_tile(stage), g.dout, head, query, x.tokens);
    if (threadIdx.x < some_queries) {
      const int i = static_cast<int>(threadIdx.x), t = query + i;
      const bool real = t < x.tokens;
      numbers[stage].lse[i] = real ? x.lse[head][t] * log2_e : 0.0f;
      numbers[stage].delta[i] = real ? g.delta[head][t] : 0.0f;
      numbers[stage].lower[i] = real ? x.limits.lower(t) : 1 << 30;
    }
    commit_copies();
  };
  copy_rows<dim, keys>(memory, x.k, kv_head, key, x.tokens);
  copy_rows<dim, keys>(memory + keys * dim, x.v, kv_head, key, x.tokens);
  copy(0, 0);
  float dk[dim / 8][4] = {}, dv[dim / 8][4] = {};
  const float scale = x.scale * log2_e;
  for (int step = 0; step < steps; ++step) {
    const int stage = step % 2, query = key + step % blocks * some_queries;
    wait_for_copies<0>();
    __syncthreads();
    if (step + 1 < steps) copy(step + 1, stage ^ 1);
    const SharedTile<dim / 8> q_now{q_tile(stage)}, o_now{o_tile(stage)};
    const QueryNumbers& n = numbers[stage];
    float p[some_queries / 8][4] = {}, dp[some_queries / 8][4] = {};
    score_both(p, dp, k_tile, v_tile, q_now, o_now);
#pragma unroll
    for (int j = 0; j < some_queries / 8; ++j)
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const int i = j * 8 + lane % 4 * 2 + e % 2, at = key + warp * 16 + lane / 4 + e / 2 * 8;
        const bool seen = at >= n.lower[i] && at <= query + i;
        const float probability = seen ? exp2f(p[j][e] * scale - n.lse[i]) : 0.0f;
        p[j][e] = probability;
        dp[j][e] = probability * (dp[j][e] - n.delta[i]);
      }
#pragma unroll
    for (int j = 0; j < some_queries / 16; ++j) {
      unsigned a[4], s[4];
      as_factor(a, p[2 * j], p[2 * j + 1]);
      as_factor(s, dp[2 * j], dp[2 * j + 1]);
#pragma unroll
      for (int d = 0; d < dim / 16; ++d) {
        unsigned b[4];
        load_b_transposed(b, o_now, d * 16, j * 16);
        multiply_add(dv[2 * d], a, b[0], b[1]);
        multiply_add(dv[2 * d + 1], a, b[2], b[3]);
        load_b_transposed(b, q_now, d * 16, j * 16);
        multiply_add(dk[2 * d], s, b[0], b[1]);
        multiply_add(dk[2 * d + 1], s, b[2], b[3]);
      }
    }
  }
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const int t = key + warp * 16 + lane / 4 + 8 * h;
    if (t >= x.tokens) continue;
    store_row(g.dk[t] + kv_head * dim, dk, h, x.scale);
    store_row(g.dv[t] + kv_head * dim, dv, h);
  }
}

// Gradients of 64 queries of one head, 16 per warp: walks over the blocks of 32 keys that they see.
constexpr int some_keys = 32;

template <int dim>
__global__ void __launch_bounds__(threads) query_gradients(AttentionArguments<bf16> x, AttentionGradients<bf16> g) {
  extern __shared__ __align__(128) unsigned char shared[];
  bf16* memory = reinterpret_cast<bf16*>(shared);
  const SharedTile<dim / 8> q_tile{memory}, o_tile{memory + queries * dim};
  const auto k_tile = [&](int stage) { return memory + 2 * queries * dim + stage * 2 * some_keys * dim; };
  const auto v_tile = [&](int stage) { return k_tile(stage) + some_keys * dim; };
  const int head = static_cast<int>(blockIdx.y), kv_head = head / x.group;
  const int first = static_cast<int>(gridDim.x - 1 - blockIdx.x) * queries, last = min(first + queries, x.tokens) - 1;
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const int begin = x.limits.lower(first) / some_keys * some_keys;
  const auto copy = [&](int key, int stage) {
    copy_rows<dim, some_keys>(k_tile(stage), x.k, kv_head, key, x.tokens);
    copy_rows<dim, some_keys>(v_tile(stage), x.v, kv_head, key, x.tokens);
    commit_copies();
  };
  copy_rows<dim, queries>(memory, x.q, head, first, x.tokens);
  copy_rows<dim, queries>(memory + queries * dim, g.dout, head, first, x.tokens);
  copy(begin, 0);
  int token[2], lower[2];
  float lse[2], delta[2], dq[dim / 8][4] = {};
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    token[h] = first + warp * 16 + lane / 4 + 8 * h;
    const bool real = token[h] < x.tokens;
    lower[h] = real ? x.limits.lower(token[h]) : 1 << 30;
    lse[h] = real ? x.lse[head][token[h]] * log2_e : 0.0f;
    delta[h] = real ? g.delta[head][token[h]] : 0.0f;
  }
  const float scale = x.scale * log2_e;
  int stage = 0;
  for (int key = begin; key <= last; key += some_keys, stage ^= 1) {
    wait_for_copies<0>();
    __syncthreads();
    if (key + some_keys <= last) copy(key + some_keys, stage ^ 1);
    const SharedTile<dim / 8> k_now{k_tile(stage)}, v_now{v_tile(stage)};
    float p[some_keys / 8][4] = {}, dp[some_keys / 8][4] = {};
    score_both(p, dp, q_tile, o_tile, k_now, v_now);
#pragma unroll
    for (int j = 0; j < some_keys / 8; ++j)
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const int at = key + j * 8 + lane % 4 * 2 + e % 2, h = e / 2;
        const float probability = at >= lower[h] && at <= token[h] ? exp2f(p[j][e] * scale - lse[h]) : 0.0f;
        dp[j][e] = probability * (dp[j][e] - delta[h]);
      }
#pragma unroll
    for (int j = 0; j < some_keys / 16; ++j) {
      unsigned s[4];
      as_factor(s, dp[2 * j], dp[2 * j + 1]);
      multiply_add_transposed(dq, s, k_now, 0, j * 16);
    }
  }
#pragma unroll
  for (int h = 0; h < 2; ++h)
    if (token[h] < x.tokens) store_row(g.dq[token[h]] + head * dim, dq, h, x.scale);
}

bool aligned(const Tensor& t) { return t.stride % 8 == 0 && reinterpret_cast<std::uintptr_t>(t.data) % 16 == 0; }

template <class Kernel, class... Arguments>
void run(const char* name, CudaStream& stream, const Kernel& kernel, std::int64_t tokens, std::int64_t heads, int rows,
         int elements, const Arguments&... arguments) {
  const dim3 grid(static_cast<unsigned>(divide_up(tokens, rows)), static_cast<unsigned>(heads));
  launch_shared(name, stream, kernel, grid, threads, elements * static_cast<int>(sizeof(bf16)), arguments...);
}

template <class Body>
bool with_dim(const Attention& op, const Body& body) {
  if (op.dim != op.value_dim || (op.dim != 64 && op.dim != 128) || op.q.rows() >= 1 << 30) return false;
  for (const Tensor* t : {&op.q, &op.k, &op.v, &op.out})
    if (!aligned(*t)) return false;
  if (op.dim == 64)
    body(std::integral_constant<int, 64>{});
  else
    body(std::integral_constant<int, 128>{});
  return true;
}

}  // namespace

bool tensor_attention(CudaStream& stream, const Attention& op, const AttentionArguments<bf16>& x) {
  return with_dim(op, [&](auto dim) {
    constexpr int d = decltype(dim)::value;
    run("attention", stream, forward_kernel<d>, op.q.rows(), op.heads, queries, (queries + 4 * keys) * d, x);
  });
}

bool tensor_attention_backward(CudaStream& stream, const AttentionBackward& op, const AttentionArguments<bf16>& x,
                               const AttentionGradients<bf16>& g) {
  for (const Tensor* t : {&op.dout, &op.dq, &op.dk, &op.dv})
    if (!aligned(*t)) return false;
  return with_dim(op.forward, [&](auto dim) {
    constexpr int d = decltype(dim)::value;
    constexpr const char* name = "attention_backward";
    const std::int64_t tokens = op.forward.q.rows();
    run(name, stream, key_gradients<d>, tokens, op.forward.kv_heads, keys, (2 * keys + 4 * some_queries) * d, x, g);
    run(name, stream, query_gradients<d>, tokens, op.forward.heads, queries, (2 * queries + 4 * some_keys) * d, x, g);
  });
}

}  // namespace weft::cuda
