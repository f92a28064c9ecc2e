// Mamba-2's scan without tensor cores: f32, and every size that scan_tensor.cu does not take. Each number has one thread
// that adds it up; matrices of pairs of tokens lie in scratch memory, one set per block.
#include "weft/device/cuda/kernels/launch.cuh"
#include "weft/device/cuda/kernels/reduce.cuh"
#include "weft/device/cuda/kernels/scan.cuh"

namespace weft::cuda {

namespace {

constexpr int threads = 256;
constexpr std::int64_t most_blocks = 132;

// decay from token j to token t >= j of a head; sums: its running sums in this chunk.
__device__ float decay(const double* sums, int t, int j) {
  return t == j ? 1.0f : static_cast<float>(exp(sums[t] - sums[j]));
}

// A thread per element of the state.
template <class T>
__global__ void carry_kernel(ScanArguments<T> x, Rows<const T> rows, Rows<const T> columns, const float* factor,
                             float* states, bool backward) {
  const int e = static_cast<int>(blockIdx.x * threads + threadIdx.x), head = static_cast<int>(blockIdx.y);
  if (e >= x.dim * x.state) return;
  const int p = head * x.dim + e / x.state, q = head / x.per_group * x.state + e % x.state;
  const std::int64_t at = static_cast<std::int64_t>(head) * x.cut.tokens;
  float h = 0;
  for (int i = 0; i < x.cut.per_sequence; ++i) {
    const int c = static_cast<int>(blockIdx.z) * x.cut.per_sequence + (backward ? x.cut.per_sequence - 1 - i : i);
    x.state_of(states, c, head)[e] = h;
    const int begin = x.cut.begin(c), n = x.cut.size(c);
    float sum = 0;
    for (int t = begin; t < begin + n; ++t) sum += factor[at + t] * widen(rows[t][p]) * widen(columns[t][q]);
    h = x.steps.start[at + begin + n - 1] * h + sum;
  }
}

// A block takes chunks of heads in turn.
template <class T>
__global__ void output_kernel(ScanArguments<T> x, float* room) {
  const int Q = x.cut.chunk, P = x.dim, N = x.state;
  float* M = room + static_cast<std::int64_t>(blockIdx.x) * Q * Q;
  for (std::int64_t task = blockIdx.x; task < static_cast<std::int64_t>(x.cut.count()) * x.heads; task += gridDim.x) {
    const int c = static_cast<int>(task / x.heads), head = static_cast<int>(task % x.heads);
    const int begin = x.cut.begin(c), n = x.cut.size(c), group = head / x.per_group * N;
    const std::int64_t at = static_cast<std::int64_t>(head) * x.cut.tokens + begin;
    const float* H = x.state_of(x.states, c, head);
    for (int i = static_cast<int>(threadIdx.x); i < n * n; i += threads) {
      const int t = i / n, j = i % n;
      float value = 0;
      if (j <= t && j >= x.cut.first(begin, t)) {
        const T *C = x.C[begin + t] + group, *B = x.B[begin + j] + group;
        for (int k = 0; k < N; ++k) value += widen(C[k]) * widen(B[k]);
        value *= decay(x.steps.sum + at, t, j) * x.steps.dt[at + j];
      }
      M[t * Q + j] = value;
    }
    __syncthreads();
    const float skip = x.D != nullptr ? x.D[head] : 0.0f;
    for (int i = static_cast<int>(threadIdx.x); i < n * P; i += threads) {
      const int t = i / P, p = i % P;
      const T* C = x.C[begin + t] + group;
      float inside = 0, before = 0;
      for (int j = 0; j <= t; ++j) inside += M[t * Q + j] * widen(x.x[begin + j][head * P + p]);
      for (int k = 0; k < N; ++k) before += H[p * N + k] * widen(C[k]);
      x.y[begin + t][head * P + p] =
          narrow<T>(inside + x.steps.start[at + t] * before + skip * widen(x.x[begin + t][head * P + p]));
    }
    __syncthreads();
  }
}

struct PairRoom {
  float *CB, *decays, *dM, *dB, *dC;  // [Q][Q] three times, [Q][N] twice
  __device__ PairRoom(float* room, int Q, int N) {
    CB = room + static_cast<std::int64_t>(blockIdx.x) * (3 * Q * Q + 2 * Q * N);
    decays = CB + Q * Q;
    dM = decays + Q * Q;
    dB = dM + Q * Q;
    dC = dB + Q * N;
  }
};

// One head: dx, what dB and dC gain, and the parts of the gradient of the steps.
template <class T>
__device__ void head_backward(const ScanArguments<T>& x, const ScanGradients<T>& g, const PairRoom& r, int c,
                              int head) {
  const int Q = x.cut.chunk, P = x.dim, N = x.state, me = static_cast<int>(threadIdx.x);
  const int begin = x.cut.begin(c), n = x.cut.size(c), group = head / x.per_group * N;
  const std::int64_t at = static_cast<std::int64_t>(head) * x.cut.tokens + begin;
  const float *H0 = x.state_of(x.states, c, head), *dH = x.state_of(g.dstates, c, head);
  const float* d = x.steps.dt + at;
  for (int i = me; i < n * n; i += threads) {
    const int t = i / n, j = i % n;
    float value = 0, dM = 0;
    if (j <= t && j >= x.cut.first(begin, t)) {
      value = decay(x.steps.sum + at, t, j);
      for (int p = head * P; p < (head + 1) * P; ++p) dM += widen(g.dy[begin + t][p]) * widen(x.x[begin + j][p]);
    }
    r.decays[t * Q + j] = value;
    r.dM[t * Q + j] = dM;
  }
  __syncthreads();
  const float skip = x.D != nullptr ? x.D[head] : 0.0f;
  for (int i = me; i < n * P; i += threads) {
    const int j = i / P, p = i % P;
    float inside = 0, after = 0;
    for (int t = j; t < n; ++t) inside += r.decays[t * Q + j] * r.CB[t * Q + j] * widen(g.dy[begin + t][head * P + p]);
    for (int k = 0; k < N; ++k) after += dH[p * N + k] * widen(x.B[begin + j][group + k]);
    g.dx[begin + j][head * P + p] =
        narrow<T>(inside * d[j] + x.steps.share[at + j] * after + skip * widen(g.dy[begin + j][head * P + p]));
  }
  for (int i = me; i < n * N; i += threads) {
    const int t = i / N, k = i % N;
    float pairs = 0, state = 0;
    for (int j = 0; j <= t; ++j)
      pairs += r.dM[t * Q + j] * r.decays[t * Q + j] * d[j] * widen(x.B[begin + j][group + k]);
    for (int p = 0; p < P; ++p) state += H0[p * N + k] * widen(g.dy[begin + t][head * P + p]);
    r.dC[i] += pairs + x.steps.start[at + t] * state;
    pairs = state = 0;  // and dB of the same token
    for (int s = t; s < n; ++s) pairs += r.dM[s * Q + t] * r.decays[s * Q + t] * widen(x.C[begin + s][group + k]);
    for (int p = 0; p < P; ++p) state += dH[p * N + k] * widen(x.x[begin + t][head * P + p]);
    r.dB[i] += pairs * d[t] + x.steps.share[at + t] * state;
  }
  for (int t = me; t < n; t += threads) {
    float row = 0, column = 0, reach = 0, before = 0;
    for (int j = 0; j < t; ++j) row += r.dM[t * Q + j] * r.decays[t * Q + j] * r.CB[t * Q + j] * d[j];
    for (int s = t + 1; s < n; ++s) column += r.dM[s * Q + t] * r.decays[s * Q + t] * r.CB[s * Q + t];
    for (int p = 0; p < P; ++p) {
      float after = 0, moved = 0;
      for (int k = 0; k < N; ++k) {
        after += dH[p * N + k] * widen(x.B[begin + t][group + k]);
        moved += H0[p * N + k] * widen(x.C[begin + t][group + k]);
      }
      reach += after * widen(x.x[begin + t][head * P + p]);
      before += moved * widen(g.dy[begin + t][head * P + p]);
    }
    g.parts.row[0][at + t] = row;
    g.parts.column[at + t] = column;
    g.parts.self[at + t] = r.dM[t * Q + t] * r.CB[t * Q + t];
    g.parts.diagonal[at + t] = r.dM[t * Q + t];
    g.parts.reach[at + t] = x.steps.end[at + t] * reach;
    g.parts.before[at + t] = x.steps.start[at + t] * before;
  }
  float dot = 0;
  for (int i = me; i < P * N; i += threads) dot += dH[i] * H0[i];
  dot = block_sum<threads>(dot);
  if (me == 0) g.parts.dot[static_cast<std::int64_t>(c) * x.heads + head] = dot;
  __syncthreads();
}

// A block takes chunks of groups in turn.
template <class T>
__global__ void backward_kernel(ScanArguments<T> x, ScanGradients<T> g, float* room) {
  const int Q = x.cut.chunk, N = x.state;
  const PairRoom r(room, Q, N);
  for (std::int64_t task = blockIdx.x; task < static_cast<std::int64_t>(x.cut.count()) * x.groups; task += gridDim.x) {
    const int c = static_cast<int>(task / x.groups), group = static_cast<int>(task % x.groups);
    const int begin = x.cut.begin(c), n = x.cut.size(c);
    for (int i = static_cast<int>(threadIdx.x); i < n * n; i += threads) {
      const int t = i / n, j = i % n;
      const T *C = x.C[begin + t] + group * N, *B = x.B[begin + j] + group * N;
      float value = 0;
      for (int k = 0; j <= t && k < N; ++k) value += widen(C[k]) * widen(B[k]);
      r.CB[t * Q + j] = value;
    }
    for (int i = static_cast<int>(threadIdx.x); i < n * N; i += threads) r.dB[i] = r.dC[i] = 0;
    __syncthreads();
    for (int head = group * x.per_group; head < (group + 1) * x.per_group; ++head) head_backward(x, g, r, c, head);
    for (int i = static_cast<int>(threadIdx.x); i < n * N; i += threads) {
      g.dB[begin + i / N][group * N + i % N] = narrow<T>(r.dB[i]);
      g.dC[begin + i / N][group * N + i % N] = narrow<T>(r.dC[i]);
    }
    __syncthreads();
  }
}

template <class T>
void carry(const char* name, CudaStream& stream, const ScanArguments<T>& x, const Rows<const T>& rows,
           const Rows<const T>& columns, const float* factor, float* states, bool backward) {
  const dim3 grid(static_cast<unsigned>(divide_up(static_cast<std::int64_t>(x.dim) * x.state, threads)),
                  static_cast<unsigned>(x.heads), static_cast<unsigned>(x.cut.sequences));
  carry_kernel<T><<<grid, threads, 0, stream.handle()>>>(x, rows, columns, factor, states, backward);
  launched(name);
}

}  // namespace

std::int64_t plain_scan_room(const ChunkCut& cut, std::int64_t tasks, std::int64_t state, bool backward) {
  const std::int64_t Q = cut.chunk;
  return std::min(tasks, most_blocks) * (backward ? 3 * Q * Q + 2 * Q * state : Q * Q);
}

template <class T>
void plain_scan(const char* name, CudaStream& stream, const ScanArguments<T>& x, float* room) {
  carry<T>(name, stream, x, x.x, x.B, x.steps.share, x.states, false);
  const std::int64_t tasks = static_cast<std::int64_t>(x.cut.count()) * x.heads;
  output_kernel<T><<<static_cast<unsigned>(std::min(tasks, most_blocks)), threads, 0, stream.handle()>>>(x, room);
  launched(name);
}

template <class T>
void plain_scan_backward(const char* name, CudaStream& stream, const ScanArguments<T>& x, const ScanGradients<T>& g,
                         float* room) {
  carry<T>(name, stream, x, g.dy, x.C, x.steps.start, g.dstates, true);
  const std::int64_t tasks = static_cast<std::int64_t>(x.cut.count()) * x.groups;
  backward_kernel<T><<<static_cast<unsigned>(std::min(tasks, most_blocks)), threads, 0, stream.handle()>>>(x, g, room);
  launched(name);
}

template void plain_scan(const char*, CudaStream&, const ScanArguments<float>&, float*);
template void plain_scan(const char*, CudaStream&, const ScanArguments<bf16>&, float*);
template void plain_scan_backward(const char*, CudaStream&, const ScanArguments<float>&, const ScanGradients<float>&,
                                  float*);
template void plain_scan_backward(const char*, CudaStream&, const ScanArguments<bf16>&, const ScanGradients<bf16>&,
                                  float*);

}  // namespace weft::cuda
