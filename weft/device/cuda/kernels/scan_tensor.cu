// Mamba-2's scan on tensor cores, forward. The state is carried along a sequence in registers, one block per head and 64
// of the state's columns; then a block takes 64 tokens of a chunk and the heads of a group one after the other, which
// share the products of B and C.
#include "weft/device/cuda/kernels/scan_tensor.cuh"

namespace weft::cuda {

namespace {

struct Carry {
  Rows<const bf16> rows, columns;
  const float* factor;
  float* states;
  bool backward;
};

constexpr int carry_stage = 2 * scan_rows * 64;  // elements: rows of the one and of the other
constexpr int carry_shared = 2 * (carry_stage * 2 + scan_rows * 4 + 16);

template <int N>
__global__ void __launch_bounds__(scan_threads) carry_kernel(ScanArguments<bf16> x, Carry a) {
  extern __shared__ __align__(128) unsigned char shared[];
  bf16* tiles = reinterpret_cast<bf16*>(shared);
  float* factors = reinterpret_cast<float*>(shared + 2 * carry_stage * 2);  // [2][128]
  float* carries = factors + 2 * scan_rows;                                 // [2], 16 bytes apart
  const int head = static_cast<int>(blockIdx.x) / (N / 64), part = static_cast<int>(blockIdx.x) % (N / 64);
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const int per = x.cut.per_sequence, column = head / x.per_group * N + part * 64;
  const std::int64_t at = static_cast<std::int64_t>(head) * x.cut.tokens;
  const auto chunk_of = [&](int i) { return static_cast<int>(blockIdx.y) * per + (a.backward ? per - 1 - i : i); };
  const auto fetch = [&](int i) {
    const int c = chunk_of(i), begin = x.cut.begin(c), n = x.cut.size(c), stage = i & 1;
    bf16* to = tiles + stage * carry_stage;
    copy_tokens<8>(to, a.rows, begin, n, 0, scan_rows, 0, head * scan_dim);
    copy_tokens<8>(to + scan_rows * 64, a.columns, begin, n, 0, scan_rows, 0, column);
    const int t = static_cast<int>(threadIdx.x);
    copy_async4(factors + stage * scan_rows + t, a.factor + at + begin + (t < n ? t : 0), t < n);
    if (t == 0) copy_async4(carries + stage * 4, x.steps.start + at + begin + n - 1, true);
  };
  float h[8][4] = {};
  if (per > 1) fetch(0);
  commit_copies();
  for (int i = 0; i < per; ++i) {
    const int c = chunk_of(i);
    float* to = x.state_of(a.states, c, head) + (warp * 16 + lane / 4) * N + part * 64 + lane % 4 * 2;
#pragma unroll
    for (int b = 0; b < 8; ++b) {
      *reinterpret_cast<float2*>(to + b * 8) = make_float2(h[b][0], h[b][1]);
      *reinterpret_cast<float2*>(to + 8 * N + b * 8) = make_float2(h[b][2], h[b][3]);
    }
    if (i + 1 == per) break;
    if (i + 2 < per) fetch(i + 1);
    commit_copies();
    wait_for_copies<1>();
    __syncthreads();
    const int stage = i & 1, n = x.cut.size(c);
    const SharedTile<8> rows{tiles + stage * carry_stage}, columns{tiles + stage * carry_stage + scan_rows * 64};
    const float carry = carries[stage * 4];
    scale(h, carry);
    for (int t = 0; t < n; t += 16) {
      unsigned r[4];
      load_a_transposed(r, rows, warp * 16, t);
      scale_columns(r, factors + stage * scan_rows, t);
      multiply_add_transposed(h, r, columns, 0, t);
    }
    __syncthreads();
  }
}

template <int N>
struct OutputShared {
  static constexpr int C = 0, B = C + scan_half * N, x = B + scan_rows * N, H = x + scan_rows * scan_dim,
                       end = H + scan_dim * N;  // elements
  static constexpr int bytes = end * 2 + 2 * scan_rows * 4;
};

template <int N>
__global__ void __launch_bounds__(scan_threads, 2) output_kernel(ScanArguments<bf16> x) {
  extern __shared__ __align__(128) unsigned char shared[];
  bf16* memory = reinterpret_cast<bf16*>(shared);
  using At = OutputShared<N>;
  const SharedTile<N / 8> C{memory + At::C}, B{memory + At::B}, H{memory + At::H};
  const SharedTile<8> xs{memory + At::x};
  float* floats = reinterpret_cast<float*>(memory + At::end);
  const HeadSteps steps{floats, floats + scan_rows};
  const int c = static_cast<int>(blockIdx.x) / 2, row0 = static_cast<int>(blockIdx.x) % 2 * scan_half;
  const int begin = x.cut.begin(c), n = x.cut.size(c);
  if (row0 >= n) return;
  const HeadRange heads(x, static_cast<int>(blockIdx.y));
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const int strip = row0 / 16 + warp;  // of 16 tokens: this warp's rows
  copy_tokens<N / 8>(C.data, x.C, begin, n, row0, row0 + scan_half, row0, heads.group * N);
  copy_tokens<N / 8>(B.data, x.B, begin, n, 0, row0 + scan_half, 0, heads.group * N);
  commit_copies();
  wait_for_copies<0>();
  __syncthreads();
  float pairs[8][2][4] = {};
  multiply_pairs(pairs, C, warp * 16, B, [=](int j) { return j <= strip; });
  int token[2], lower[2];
  own_tokens(token, lower, x.cut, begin, n, strip);
  for (int head = heads.first; head < heads.end; ++head) {
    const std::int64_t at = static_cast<std::int64_t>(head) * x.cut.tokens + begin;
    __syncthreads();
    copy_tokens<8>(xs.data, x.x, begin, n, 0, row0 + scan_half, 0, head * scan_dim);
    commit_copies();
    copy_state<N>(H.data, x.state_of(x.states, c, head), nullptr);
    steps.load(x.steps, at, n);
    wait_for_copies<0>();
    __syncthreads();
    float y[8][4] = {};
#pragma unroll 2
    for (int k = 0; k < N; k += 16) {
      unsigned a[4];
      load_a(a, C, warp * 16, k);
      multiply_add(y, a, H, 0, k);
    }
    float sum[2];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      sum[r] = steps.sum[token[r]];
      scale_row(y, r, token[r] < n ? x.steps.start[at + token[r]] : 0.0f);
    }
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      if (j > strip) continue;
      float m[2][4];
#pragma unroll
      for (int b = 0; b < 2; ++b)
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          const int from = j * 16 + b * 8 + lane % 4 * 2 + e % 2, r = e / 2;
          const bool seen = from <= token[r] && from >= lower[r];
          m[b][e] = seen ? pairs[j][b][e] * exp2f(sum[r] - steps.sum[from]) * steps.dt[from] : 0.0f;
        }
      unsigned a[4];
      as_factor(a, m[0], m[1]);
      multiply_add_transposed(y, a, xs, 0, j * 16);
    }
    const float skip = x.D != nullptr ? x.D[head] : 0.0f;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      if (token[r] >= n) continue;
      bf16* to = x.y[begin + token[r]] + head * scan_dim + lane % 4 * 2;
#pragma unroll
      for (int p = 0; p < 8; ++p) {
        const float2 own = pair_at(xs, token[r], p * 8 + lane % 4 * 2);
        *reinterpret_cast<unsigned*>(to + p * 8) =
            pack_pair(y[p][2 * r] + skip * own.x, y[p][2 * r + 1] + skip * own.y);
      }
    }
  }
}

template <int N>
void forward(const char* name, CudaStream& stream, const ScanArguments<bf16>& x) {
  const dim3 grid(static_cast<unsigned>(2 * x.cut.count()), HeadRange::count(x.groups, x.per_group));
  launch_shared(name, stream, output_kernel<N>, grid, scan_threads, OutputShared<N>::bytes, x);
}

}  // namespace

bool tensor_scan_fits(const StateScan& op, const StateScanBackward* g) {
  const std::int64_t length = op.length > 0 ? op.length : op.x.rows();
  if (op.dim != scan_dim || (op.state != 64 && op.state != 128) || std::min(op.chunk, length) > scan_rows) return false;
  if (!packs(op.dim, {&op.x, &op.B, &op.C, &op.y, &op.states})) return false;
  return g == nullptr || packs(op.dim, {&g->dy, &g->dx, &g->dB, &g->dC, &g->dstates});
}

void tensor_carry(const char* name, CudaStream& stream, const ScanArguments<bf16>& x, const Rows<const bf16>& rows,
                  const Rows<const bf16>& columns, const float* factor, float* states, bool backward) {
  const dim3 grid(static_cast<unsigned>(x.heads * (x.state / 64)), static_cast<unsigned>(x.cut.sequences));
  const Carry carry{rows, columns, factor, states, backward};
  const auto run = [&](auto kernel) {
    launch_shared(name, stream, kernel, grid, scan_threads, carry_shared, x, carry);
  };
  x.state == 128 ? run(carry_kernel<128>) : run(carry_kernel<64>);
}

void tensor_scan(const char* name, CudaStream& stream, const ScanArguments<bf16>& x) {
  tensor_carry(name, stream, x, x.x, x.B, x.steps.share, x.states, false);
  x.state == 128 ? forward<128>(name, stream, x) : forward<64>(name, stream, x);
}

}  // namespace weft::cuda
