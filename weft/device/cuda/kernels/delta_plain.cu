// The gated delta rule without tensor cores: a block walks along one sequence, chunk after chunk; each number has one
// thread that adds it up. Matrices of pairs of tokens lie in scratch memory, one set per block.
#include "weft/device/cuda/kernels/delta.cuh"
#include "weft/device/cuda/kernels/launch.cuh"
#include "weft/device/cuda/kernels/reduce.cuh"

namespace weft::cuda {

namespace {

constexpr int threads = 256;

// Of one block. Q tokens in a chunk, K dim, V value_dim.
struct Room {
  float *KK, *D, *A, *P;  // [Q][Q]
  float *Z, *U;           // [Q][V]
  float *dA, *dP;         // [Q][Q]; these and those below: backward
  float *KdS, *dR;        // [Q][V]
  float *dq, *dk, *dS;    // [Q][K] twice, [per_key][K][V]
  __host__ __device__ static std::int64_t floats(std::int64_t Q, std::int64_t K, std::int64_t V, std::int64_t per_key,
                                                 bool backward) {
    return 4 * Q * Q + 2 * Q * V + (backward ? 2 * Q * Q + 2 * Q * V + 2 * Q * K + per_key * K * V : 0);
  }
  __device__ Room(float* room, std::int64_t Q, std::int64_t K, std::int64_t V, std::int64_t per_key, bool backward) {
    KK = room + blockIdx.x * floats(Q, K, V, per_key, backward);
    D = KK + Q * Q;
    A = D + Q * Q;
    P = A + Q * Q;
    Z = P + Q * Q;
    U = Z + Q * V;
    dA = U + Q * V;
    dP = dA + Q * Q;
    KdS = dP + Q * Q;
    dR = KdS + Q * V;
    dq = dR + Q * V;
    dk = dq + Q * K;
    dS = dk + Q * K;
  }
};

// Everything up to U and P, of one head in one chunk.
template <class T>
__device__ void solve(const DeltaArguments<T>& x, const Room& r, int c, int head) {
  const int Q = x.cut.chunk, K = x.dim, V = x.value_dim, me = static_cast<int>(threadIdx.x);
  const int begin = x.cut.begin(c), n = x.cut.size(c), key = head / x.per_key * K;
  const std::int64_t at = static_cast<std::int64_t>(head) * x.cut.tokens + begin;
  const float* S0 = x.state_of(c, head);
  for (int i = me; i < n * n; i += threads) {
    const int t = i / n, j = i % n;
    float KK = 0, QK = 0, D = 0;
    if (j <= t && j >= x.cut.first(begin, t)) {
      const T *kt = x.k[begin + t] + key, *kj = x.k[begin + j] + key, *qt = x.q[begin + t] + key;
      for (int e = 0; e < K; ++e) {
        KK += widen(kt[e]) * widen(kj[e]);
        QK += widen(qt[e]) * widen(kj[e]);
      }
      D = t == j ? 1.0f : static_cast<float>(exp(x.gates.sum[at + t] - x.gates.sum[at + j]));
    }
    r.KK[t * Q + j] = KK;
    r.D[t * Q + j] = D;
    r.A[t * Q + j] = x.gates.beta[at + t] * D * KK;
    r.P[t * Q + j] = D * QK;
  }
  for (int i = me; i < n * V; i += threads) {
    const int t = i / V, e = i % V;
    const T* k = x.k[begin + t] + key;
    float before = 0;
    for (int d = 0; d < K; ++d) before += S0[d * V + e] * widen(k[d]);
    r.Z[i] = widen(x.v[begin + t][head * V + e]) - x.gates.start[at + t] * before;
  }
  __syncthreads();
  for (int e = me; e < V; e += threads)  // columns of the triangular system are independent
    for (int t = 0; t < n; ++t) {
      float u = x.gates.beta[at + t] * r.Z[t * V + e];
      for (int j = 0; j < t; ++j) u -= r.A[t * Q + j] * r.U[j * V + e];
      r.U[t * V + e] = u;
    }
  __syncthreads();
}

template <class T>
__global__ void forward_kernel(DeltaArguments<T> x, float* room) {
  const int Q = x.cut.chunk, K = x.dim, V = x.value_dim, per = x.cut.per_sequence, me = static_cast<int>(threadIdx.x);
  const Room r(room, Q, K, V, x.per_key, false);
  const int head = static_cast<int>(blockIdx.x) % x.heads, first = static_cast<int>(blockIdx.x) / x.heads * per;
  const int key = head / x.per_key * K;
  for (int i = me; i < K * V; i += threads) x.state_of(first, head)[i] = 0;
  __syncthreads();
  for (int c = first; c < first + per; ++c) {
    const int begin = x.cut.begin(c), n = x.cut.size(c);
    const std::int64_t at = static_cast<std::int64_t>(head) * x.cut.tokens + begin;
    const float* S0 = x.state_of(c, head);
    solve(x, r, c, head);
    for (int i = me; i < n * V; i += threads) {
      const int t = i / V, e = i % V;
      const T* q = x.q[begin + t] + key;
      float inside = 0, before = 0;
      for (int j = 0; j <= t; ++j) inside += r.P[t * Q + j] * r.U[j * V + e];
      for (int d = 0; d < K; ++d) before += S0[d * V + e] * widen(q[d]);
      x.y[begin + t][head * V + e] = narrow<T>(inside + x.gates.start[at + t] * before);
    }
    if (c + 1 < first + per) {
      float* next = x.state_of(c + 1, head);
      for (int i = me; i < K * V; i += threads) {
        float s = x.gates.start[at + n - 1] * S0[i];
        for (int t = 0; t < n; ++t) s += x.gates.end[at + t] * widen(x.k[begin + t][key + i / V]) * r.U[t * V + i % V];
        next[i] = s;
      }
    }
    __syncthreads();
  }
}

// One head in one chunk; dq and dk of the key head gain, dS becomes the gradient of the state before the chunk.
template <class T>
__device__ void head_backward(const DeltaArguments<T>& x, const DeltaGradients<T>& g, const Room& r, float* dS, int c,
                              int head) {
  const int Q = x.cut.chunk, K = x.dim, V = x.value_dim, me = static_cast<int>(threadIdx.x);
  const int begin = x.cut.begin(c), n = x.cut.size(c), key = head / x.per_key * K;
  const std::int64_t at = static_cast<std::int64_t>(head) * x.cut.tokens + begin;
  const float *S0 = x.state_of(c, head), *E = x.gates.start + at, *F = x.gates.end + at, *beta = x.gates.beta + at;
  const auto dy = [&](int t, int e) { return widen(g.dy[begin + t][head * V + e]); };
  solve(x, r, c, head);
  for (int i = me; i < n * V; i += threads) {
    const int t = i / V, e = i % V;
    float sum = 0;
    for (int d = 0; d < K; ++d) sum += widen(x.k[begin + t][key + d]) * dS[d * V + e];
    r.KdS[i] = sum;
  }
  __syncthreads();
  for (int e = me; e < V; e += threads)  // dR = (I + A)^-T dU,  dU = P^T dy + F K dS
    for (int t = n - 1; t >= 0; --t) {
      float sum = F[t] * r.KdS[t * V + e];
      for (int s = t; s < n; ++s) sum += r.P[s * Q + t] * dy(s, e);
      for (int s = t + 1; s < n; ++s) sum -= r.A[s * Q + t] * r.dR[s * V + e];
      r.dR[t * V + e] = sum;
      g.dv[begin + t][head * V + e] = narrow<T>(beta[t] * sum);
    }
  __syncthreads();
  for (int i = me; i < n * n; i += threads) {
    const int t = i / n, j = i % n;
    float dP = 0, dA = 0;
    if (j <= t && r.D[t * Q + j] != 0)
      for (int e = 0; e < V; ++e) {
        dP += dy(t, e) * r.U[j * V + e];
        dA -= r.dR[t * V + e] * r.U[j * V + e];
      }
    r.dP[t * Q + j] = dP;
    r.dA[t * Q + j] = j < t ? dA : 0.0f;
  }
  float dot = 0;
  for (int i = me; i < K * V; i += threads) dot += dS[i] * S0[i];
  dot = block_sum<threads>(dot);  // and waits for the pairs
  for (int i = me; i < n * K; i += threads) {
    const int t = i / K, d = i % K;
    float dq = 0, dk = 0, up = 0, down = 0, out = 0;
    for (int e = 0; e < V; ++e) {
      up += S0[d * V + e] * dy(t, e);
      down += S0[d * V + e] * r.dR[t * V + e];
      out += dS[d * V + e] * r.U[t * V + e];
    }
    for (int j = 0; j <= t; ++j) {
      dq += r.dP[t * Q + j] * r.D[t * Q + j] * widen(x.k[begin + j][key + d]);
      dk += r.dA[t * Q + j] * beta[t] * r.D[t * Q + j] * widen(x.k[begin + j][key + d]);
    }
    for (int s = t; s < n; ++s)
      dk += r.D[s * Q + t] * (r.dP[s * Q + t] * widen(x.q[begin + s][key + d]) +
                              r.dA[s * Q + t] * beta[s] * widen(x.k[begin + s][key + d]));
    r.dq[i] += dq + E[t] * up;
    r.dk[i] += dk - E[t] * beta[t] * down + F[t] * out;
  }
  for (int t = me; t < n; t += threads) {
    double ds = 0, dbeta = 0;
    for (int j = 0; j < t; ++j) {
      ds += static_cast<double>(r.dP[t * Q + j] * r.P[t * Q + j] + r.dA[t * Q + j] * r.A[t * Q + j]);
      dbeta += static_cast<double>(r.dA[t * Q + j] * r.D[t * Q + j] * r.KK[t * Q + j]);
    }
    for (int s = t + 1; s < n; ++s)
      ds -= static_cast<double>(r.dP[s * Q + t] * r.P[s * Q + t] + r.dA[s * Q + t] * r.A[s * Q + t]);
    float before = 0, reach = 0, own = 0;
    for (int e = 0; e < V; ++e) {
      float q = 0, k = 0;
      for (int d = 0; d < K; ++d) {
        q += S0[d * V + e] * widen(x.q[begin + t][key + d]);
        k += S0[d * V + e] * widen(x.k[begin + t][key + d]);
      }
      before += dy(t, e) * q - beta[t] * r.dR[t * V + e] * k;
      reach += r.KdS[t * V + e] * r.U[t * V + e];
      own += r.dR[t * V + e] * r.Z[t * V + e];
    }
    ds += static_cast<double>(E[t] * before);
    if (t + 1 < n) ds -= static_cast<double>(F[t] * reach);
    g.ds[at + t] = ds;
    g.dbeta[at + t] = static_cast<float>(dbeta + static_cast<double>(own));
  }
  __syncthreads();
  if (me == 0) {  // what reaches the state after the chunk, and through it
    double reach = E[n - 1] != 0 ? static_cast<double>(E[n - 1]) * static_cast<double>(dot) : 0.0;
    for (int t = 0; t + 1 < n; ++t) {
      float sum = 0;
      for (int e = 0; e < V; ++e) sum += r.KdS[t * V + e] * r.U[t * V + e];
      reach += static_cast<double>(F[t] * sum);
    }
    g.ds[at + n - 1] += reach;
  }
  for (int i = me; i < K * V; i += threads) {
    const int d = i / V, e = i % V;
    float sum = E[n - 1] * dS[i];
    for (int t = 0; t < n; ++t)
      sum += E[t] *
             (widen(x.q[begin + t][key + d]) * dy(t, e) - widen(x.k[begin + t][key + d]) * beta[t] * r.dR[t * V + e]);
    dS[i] = sum;
  }
  __syncthreads();
}

// A block walks back along a sequence, with all value heads of one key head.
template <class T>
__global__ void backward_kernel(DeltaArguments<T> x, DeltaGradients<T> g, float* room) {
  const int Q = x.cut.chunk, K = x.dim, V = x.value_dim, per = x.cut.per_sequence, me = static_cast<int>(threadIdx.x);
  const Room r(room, Q, K, V, x.per_key, true);
  const int key = static_cast<int>(blockIdx.x) % x.key_heads, first = static_cast<int>(blockIdx.x) / x.key_heads * per;
  for (int i = me; i < x.per_key * K * V; i += threads) r.dS[i] = 0;
  for (int c = first + per - 1; c >= first; --c) {
    const int begin = x.cut.begin(c), n = x.cut.size(c);
    for (int i = me; i < n * K; i += threads) r.dq[i] = r.dk[i] = 0;
    __syncthreads();
    for (int i = 0; i < x.per_key; ++i)
      head_backward(x, g, r, r.dS + static_cast<std::int64_t>(i) * K * V, c, key * x.per_key + i);
    for (int i = me; i < n * K; i += threads) {
      g.dq[begin + i / K][key * K + i % K] = narrow<T>(r.dq[i]);
      g.dk[begin + i / K][key * K + i % K] = narrow<T>(r.dk[i]);
    }
    __syncthreads();
  }
}

}  // namespace

std::int64_t plain_delta_room(const ChunkCut& cut, const DeltaRule& op, bool backward) {
  const std::int64_t blocks = cut.sequences * (backward ? op.key_heads : op.heads);
  return blocks * Room::floats(cut.chunk, op.dim, op.value_dim, op.heads / op.key_heads, backward);
}

template <class T>
void plain_delta(const char* name, CudaStream& stream, const DeltaArguments<T>& x, float* room) {
  forward_kernel<T><<<static_cast<unsigned>(x.cut.sequences * x.heads), threads, 0, stream.handle()>>>(x, room);
  launched(name);
}

template <class T>
void plain_delta_backward(const char* name, CudaStream& stream, const DeltaArguments<T>& x, const DeltaGradients<T>& g,
                          float* room) {
  backward_kernel<T><<<static_cast<unsigned>(x.cut.sequences * x.key_heads), threads, 0, stream.handle()>>>(x, g, room);
  launched(name);
}

template void plain_delta(const char*, CudaStream&, const DeltaArguments<float>&, float*);
template void plain_delta(const char*, CudaStream&, const DeltaArguments<bf16>&, float*);
template void plain_delta_backward(const char*, CudaStream&, const DeltaArguments<float>&, const DeltaGradients<float>&,
                                   float*);
template void plain_delta_backward(const char*, CudaStream&, const DeltaArguments<bf16>&, const DeltaGradients<bf16>&,
                                   float*);

}  // namespace weft::cuda
