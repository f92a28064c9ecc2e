// The gated delta rule on tensor cores, forward: one kernel solves the triangular systems of all chunks, one carries the
// state along (a block per head and 64 of its columns), one makes the outputs.
#include "weft/device/cuda/kernels/delta_tensor.cuh"

namespace weft::cuda {

namespace {

constexpr int inverse_stride = delta_rows + 4;  // floats; rows stay aligned to 16 bytes

struct SolveShared {
  static constexpr int k = 0, v = k + delta_tile, by_beta = v + delta_tile,
                       by_start = by_beta + delta_rows * delta_rows,
                       end = by_start + delta_rows * delta_rows;  // elements
  static constexpr int floats = delta_gates + delta_rows * inverse_stride, bytes = end * 2 + floats * 4;
};

// Column `c` of (I + A)^-1, downwards; A below the diagonal, in shared memory. The column stays in registers.
__device__ void invert_column(const float* A, int c, float (&x)[delta_rows]) {
#pragma unroll
  for (int t = 0; t < delta_rows; ++t) {
    float sum = t == c ? 1.0f : 0.0f;
#pragma unroll
    for (int j = 0; j < t; ++j) sum -= A[t * inverse_stride + j] * x[j];
    x[t] = sum;
  }
}

__global__ void __launch_bounds__(scan_threads) solve_kernel(DeltaArguments<bf16> x, DeltaWork work) {
  extern __shared__ __align__(128) unsigned char shared[];
  bf16* memory = reinterpret_cast<bf16*>(shared);
  const SharedTile<16> k{memory + SolveShared::k}, v{memory + SolveShared::v};
  const SharedTile<8> by_beta{memory + SolveShared::by_beta}, by_start{memory + SolveShared::by_start};
  const HeadGates gates(reinterpret_cast<float*>(memory + SolveShared::end));
  float* A = gates.sum + delta_gates;
  const int c = static_cast<int>(blockIdx.x), head = static_cast<int>(blockIdx.y);
  const int begin = x.cut.begin(c), n = x.cut.size(c);
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const std::int64_t at = static_cast<std::int64_t>(head) * x.cut.tokens + begin;
  copy_chunk(k, x.k, begin, n, head / x.per_key * delta_dim);
  copy_chunk(v, x.v, begin, n, head * delta_dim);
  commit_copies();
  gates.load(x.gates, at, n);
  wait_for_copies<0>();
  __syncthreads();
#pragma unroll
  for (int j = 0; j < 4; ++j) {
    if (j > warp) continue;
    float pairs[2][4] = {};
    multiply_add_rows(pairs, k, warp * 16, k, j * 16);
#pragma unroll
    for (int b = 0; b < 2; ++b)
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const int t = warp * 16 + lane / 4 + 8 * (e / 2), from = j * 16 + b * 8 + lane % 4 * 2 + e % 2;
        const int lower = t < n ? x.cut.first(begin, t) : delta_rows;
        A[t * inverse_stride + from] =
            from < t ? gates.beta[t] * pair_decay(gates, t, from, lower) * pairs[b][e] : 0.0f;
      }
  }
  __syncthreads();
  if (threadIdx.x < delta_rows) {
    const int column = static_cast<int>(threadIdx.x);
    float inverse[delta_rows];
    invert_column(A, column, inverse);
    const float beta = gates.beta[column], start = beta * gates.start[column];
    bf16* T = work.T != nullptr
                  ? work.T + (static_cast<std::int64_t>(c) * x.heads + head) * delta_rows * delta_rows + column
                  : nullptr;
#pragma unroll
    for (int t = 0; t < delta_rows; ++t) {
      by_beta.at(t, column / 8)[column % 8] = narrow<bf16>(inverse[t] * beta);
      by_start.at(t, column / 8)[column % 8] = narrow<bf16>(inverse[t] * start);
      if (T != nullptr) T[t * delta_rows] = narrow<bf16>(inverse[t]);
    }
  }
  __syncthreads();
  const auto multiply = [&](const SharedTile<8>& inverse, const SharedTile<16>& with, const Rows<bf16>& to) {
    float out[16][4] = {};
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      if (j > warp) continue;
      unsigned a[4];
      load_a(a, inverse, warp * 16, j * 16);
      multiply_add_transposed(out, a, with, 0, j * 16);
    }
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int t = warp * 16 + lane / 4 + 8 * r;
      if (t < n) store_row(to[begin + t], out, r);
    }
  };
  multiply(by_start, k, work.rows(work.W, head, x.cut.tokens));
  multiply(by_beta, v, work.rows(work.U, head, x.cut.tokens));
}

struct CarryShared {
  static constexpr int stage = 2 * delta_tile + delta_rows * 64;  // W, k, 64 columns of U1
  static constexpr int S = 2 * stage, U = S + delta_dim * 64, end = U + delta_rows * 64;
  static constexpr int bytes = end * 2 + 2 * (delta_rows + 4) * 4;
};

// A block: one head, 64 columns of its state [128][64], in registers; U becomes the updates.
__global__ void __launch_bounds__(scan_threads) carry_kernel(DeltaArguments<bf16> x, DeltaWork work) {
  extern __shared__ __align__(128) unsigned char shared[];
  bf16* memory = reinterpret_cast<bf16*>(shared);
  const SharedTile<8> S{memory + CarryShared::S}, scaled{memory + CarryShared::U};
  float* ends = reinterpret_cast<float*>(memory + CarryShared::end);  // [2][64], then [2] carries 16 bytes apart
  float* carries = ends + 2 * delta_rows;
  const int head = static_cast<int>(blockIdx.x) / 2, part = static_cast<int>(blockIdx.x) % 2 * 64;
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const int per = x.cut.per_sequence, first = static_cast<int>(blockIdx.y) * per;
  const std::int64_t at = static_cast<std::int64_t>(head) * x.cut.tokens;
  const Rows<bf16> U = work.rows(work.U, head, x.cut.tokens), W = work.rows(work.W, head, x.cut.tokens);
  const auto fetch = [&](int i) {
    const int begin = x.cut.begin(first + i), n = x.cut.size(first + i), stage = i & 1;
    bf16* to = memory + stage * CarryShared::stage;
    copy_chunk(SharedTile<16>{to}, W, begin, n, 0);
    copy_chunk(SharedTile<16>{to + delta_tile}, x.k, begin, n, head / x.per_key * delta_dim);
    copy_chunk(SharedTile<8>{to + 2 * delta_tile}, U, begin, n, part);
    const int t = static_cast<int>(threadIdx.x);
    if (t < delta_rows) copy_async4(ends + stage * delta_rows + t, x.gates.end + at + begin + (t < n ? t : 0), t < n);
    if (t == delta_rows) copy_async4(carries + stage * 4, x.gates.start + at + begin + n - 1, true);
  };
  float h[2][8][4] = {};  // rows warp * 32 + 16 i
  fetch(0);
  commit_copies();
  for (int i = 0; i < per; ++i) {
    const int c = first + i, begin = x.cut.begin(c), n = x.cut.size(c), stage = i & 1;
#pragma unroll
    for (int s = 0; s < 2; ++s)
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const int row = warp * 32 + s * 16 + lane / 4 + 8 * r;
        float* to = x.state_of(c, head) + row * delta_dim + part + lane % 4 * 2;
#pragma unroll
        for (int e = 0; e < 8; ++e) {
          *reinterpret_cast<float2*>(to + e * 8) = make_float2(h[s][e][2 * r], h[s][e][2 * r + 1]);
          *reinterpret_cast<unsigned*>(S.at(row, e) + lane % 4 * 2) = pack_pair(h[s][e][2 * r], h[s][e][2 * r + 1]);
        }
      }
    if (i + 1 < per) fetch(i + 1);
    commit_copies();
    wait_for_copies<1>();
    __syncthreads();
    bf16* tiles = memory + stage * CarryShared::stage;
    const SharedTile<16> w{tiles}, k{tiles + delta_tile};
    const SharedTile<8> u1{tiles + 2 * delta_tile};
    float u[8][4] = {};
    multiply_add_rows_transposed(u, w, warp * 16, S);
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int t = warp * 16 + lane / 4 + 8 * r;
      const float end = ends[stage * delta_rows + t];
#pragma unroll
      for (int e = 0; e < 8; ++e) {
        const float2 own = pair_at(u1, t, e * 8 + lane % 4 * 2);
        const float low = own.x - u[e][2 * r], high = own.y - u[e][2 * r + 1];
        if (t < n) *reinterpret_cast<unsigned*>(U[begin + t] + part + e * 8 + lane % 4 * 2) = pack_pair(low, high);
        *reinterpret_cast<unsigned*>(scaled.at(t, e) + lane % 4 * 2) = pack_pair(end * low, end * high);
      }
    }
    __syncthreads();
    const float carry = carries[stage * 4];
#pragma unroll
    for (int s = 0; s < 2; ++s) scale(h[s], carry);
#pragma unroll
    for (int t = 0; t < 4; ++t)
#pragma unroll
      for (int s = 0; s < 2; ++s) {
        unsigned a[4];
        load_a_transposed(a, k, warp * 32 + s * 16, t * 16);
        multiply_add_transposed(h[s], a, scaled, 0, t * 16);
      }
    __syncthreads();
  }
}

struct OutputShared {
  static constexpr int q = 0, k = q + delta_tile, U = k + delta_tile, S = U + delta_tile,
                       end = S + delta_dim * delta_dim;
  static constexpr int bytes = end * 2 + delta_gates * 4;
};

__global__ void __launch_bounds__(scan_threads, 2) output_kernel(DeltaArguments<bf16> x, DeltaWork work) {
  extern __shared__ __align__(128) unsigned char shared[];
  bf16* memory = reinterpret_cast<bf16*>(shared);
  const SharedTile<16> q{memory + OutputShared::q}, k{memory + OutputShared::k}, U{memory + OutputShared::U},
      S{memory + OutputShared::S};
  const HeadGates gates(reinterpret_cast<float*>(memory + OutputShared::end));
  const int c = static_cast<int>(blockIdx.x), head = static_cast<int>(blockIdx.y), key = head / x.per_key * delta_dim;
  const int begin = x.cut.begin(c), n = x.cut.size(c);
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const Rows<bf16> updates = work.rows(work.U, head, x.cut.tokens);
  copy_chunk(q, x.q, begin, n, key);
  copy_chunk(k, x.k, begin, n, key);
  copy_chunk(U, updates, begin, n, 0);
  commit_copies();
  copy_square<scan_threads>(S.data, x.state_of(c, head));
  gates.load(x.gates, static_cast<std::int64_t>(head) * x.cut.tokens + begin, n);
  wait_for_copies<0>();
  __syncthreads();
  float y[16][4] = {};
  multiply_add_rows_transposed(y, q, warp * 16, S);
  int token[2], lower[2];
  own_tokens(token, lower, x.cut, begin, n, warp);
#pragma unroll
  for (int r = 0; r < 2; ++r) scale_row(y, r, gates.start[token[r]]);
#pragma unroll
  for (int j = 0; j < 4; ++j) {
    if (j > warp) continue;
    float pairs[2][4] = {};
    multiply_add_rows(pairs, q, warp * 16, k, j * 16);
#pragma unroll
    for (int b = 0; b < 2; ++b)
#pragma unroll
      for (int e = 0; e < 4; ++e)
        pairs[b][e] *= pair_decay(gates, token[e / 2], j * 16 + b * 8 + lane % 4 * 2 + e % 2, lower[e / 2]);
    unsigned a[4];
    as_factor(a, pairs[0], pairs[1]);
    multiply_add_transposed(y, a, U, 0, j * 16);
  }
#pragma unroll
  for (int r = 0; r < 2; ++r)
    if (token[r] < n) store_row(x.y[begin + token[r]] + head * delta_dim, y, r);
}

}  // namespace

bool tensor_delta_fits(const DeltaRule& op, const DeltaRuleBackward* g) {
  const std::int64_t length = op.length > 0 ? op.length : op.q.rows();
  if (op.dim != delta_dim || op.value_dim != delta_dim || std::min(op.chunk, length) > delta_rows) return false;
  if (!packs(op.dim, {&op.q, &op.k, &op.v, &op.y, &op.states})) return false;
  return g == nullptr || packs(op.dim, {&g->dy, &g->dq, &g->dk, &g->dv});
}

void solve_chunks(const char* name, CudaStream& stream, const DeltaArguments<bf16>& x, const DeltaWork& work) {
  const dim3 grid(static_cast<unsigned>(x.cut.count()), static_cast<unsigned>(x.heads));
  launch_shared(name, stream, solve_kernel, grid, scan_threads, SolveShared::bytes, x, work);
}

void tensor_delta(const char* name, CudaStream& stream, const DeltaArguments<bf16>& x, const DeltaWork& work) {
  solve_chunks(name, stream, x, work);
  const dim3 halves(static_cast<unsigned>(2 * x.heads), static_cast<unsigned>(x.cut.sequences));
  launch_shared(name, stream, carry_kernel, halves, scan_threads, CarryShared::bytes, x, work);
  const dim3 grid(static_cast<unsigned>(x.cut.count()), static_cast<unsigned>(x.heads));
  launch_shared(name, stream, output_kernel, grid, scan_threads, OutputShared::bytes, x, work);
}

}  // namespace weft::cuda
