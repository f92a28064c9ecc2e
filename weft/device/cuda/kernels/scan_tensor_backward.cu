// Mamba-2's scan on tensor cores, backward. A block takes 64 tokens of a chunk and heads of a group one after the other:
// one kernel makes dx (rows j, sums over t >= j), one dB and dC. Products of pairs of tokens are made again in each, so
// that every sum has one owner. What the gradient of the step sizes needs goes to StepParts on the way.
#include "weft/device/cuda/kernels/quick.cuh"
#include "weft/device/cuda/kernels/scan_tensor.cuh"

namespace weft::cuda {

namespace {

template <int N>
struct InputShared {
  static constexpr int B = 0, C = B + scan_half * N, x = C + scan_rows * N, dy = x + scan_half * scan_dim,
                       dH = dy + scan_rows * scan_dim, end = dH + scan_dim * N;  // elements
  static constexpr int bytes = end * 2 + (2 + 4) * scan_rows * 4;
};

// dx of tokens row0 .. row0 + 63 of a chunk. Rows of a warp's tiles are tokens j, columns tokens t.
template <int N>
__global__ void __launch_bounds__(scan_threads, 2) input_kernel(ScanArguments<bf16> x, ScanGradients<bf16> g) {
  extern __shared__ __align__(128) unsigned char shared[];
  bf16* memory = reinterpret_cast<bf16*>(shared);
  using At = InputShared<N>;
  const SharedTile<N / 8> B{memory + At::B}, C{memory + At::C}, dH{memory + At::dH};
  const SharedTile<8> xs{memory + At::x}, dys{memory + At::dy};
  float* floats = reinterpret_cast<float*>(memory + At::end);
  const HeadSteps steps{floats, floats + scan_rows};
  float* rows = floats + 2 * scan_rows;  // [4 warps][128]: sums over the warp's j
  const int c = static_cast<int>(blockIdx.x) / 2, half = static_cast<int>(blockIdx.x) % 2, row0 = half * scan_half;
  const int begin = x.cut.begin(c), n = x.cut.size(c);
  if (row0 >= n) return;
  const HeadRange heads(x, static_cast<int>(blockIdx.y));
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const int strip = row0 / 16 + warp;
  copy_tokens<N / 8>(B.data, x.B, begin, n, row0, row0 + scan_half, row0, heads.group * N);
  copy_tokens<N / 8>(C.data, x.C, begin, n, row0, scan_rows, 0, heads.group * N);
  commit_copies();
  wait_for_copies<0>();
  __syncthreads();
  float pairs[8][2][4] = {};
  multiply_pairs(pairs, B, warp * 16, C, [=](int t) { return t >= strip; });
  int token[2];
#pragma unroll
  for (int r = 0; r < 2; ++r) token[r] = strip * 16 + lane / 4 + 8 * r;
  for (int head = heads.first; head < heads.end; ++head) {
    const std::int64_t at = static_cast<std::int64_t>(head) * x.cut.tokens + begin;
    __syncthreads();
    copy_tokens<8>(xs.data, x.x, begin, n, row0, row0 + scan_half, row0, head * scan_dim);
    copy_tokens<8>(dys.data, g.dy, begin, n, row0, scan_rows, 0, head * scan_dim);
    commit_copies();
    float dot =
        copy_state<N>(dH.data, x.state_of(g.dstates, c, head), half == 0 ? x.state_of(x.states, c, head) : nullptr);
    steps.load(x.steps, at, n);
    if (half == 0) {
      dot = block_sum<scan_threads>(dot);
      if (threadIdx.x == 0) g.parts.dot[static_cast<std::int64_t>(c) * x.heads + head] = dot;
    }
    wait_for_copies<0>();
    __syncthreads();

    // By way of the state after the chunk: end_j d_j dH B_j
    float dx[8][4] = {};
#pragma unroll 2
    for (int k = 0; k < N; k += 16) {
      unsigned a[4];
      load_a(a, B, warp * 16, k);
      multiply_add(dx, a, dH, 0, k);
    }
    float sum[2], d[2], column[2] = {0, 0};
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      sum[r] = steps.sum[token[r]];
      d[r] = steps.dt[token[r]];
      scale_row(dx, r, token[r] < n ? x.steps.share[at + token[r]] : 0.0f);
    }
    unsigned own[4][4];
#pragma unroll
    for (int k = 0; k < 4; ++k) load_a(own[k], xs, warp * 16, k * 16);
#pragma unroll
    for (int t = 0; t < 8; ++t) {
      if (t < strip) continue;
      float dm[2][4] = {}, m[2][4];
#pragma unroll
      for (int k = 0; k < 4; ++k) multiply_add(dm, own[k], dys, t * 16, k * 16);
#pragma unroll
      for (int b = 0; b < 2; ++b) {
        float row[2] = {0, 0};
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          const int to = t * 16 + b * 8 + lane % 4 * 2 + e % 2, r = e / 2, j = token[r];
          float decayed = 0;
          if (to > j && to < n && x.cut.first(begin, to) <= j) {
            decayed = pairs[t][b][e] * quick_exp2(steps.sum[to] - sum[r]);
            const float w = dm[b][e] * decayed;
            column[r] += w;
            row[e % 2] += w * d[r];
          } else if (to == j && j < n) {  // a token with itself has no decay
            decayed = pairs[t][b][e];
            g.parts.self[at + j] = dm[b][e] * decayed;
            g.parts.diagonal[at + j] = dm[b][e];
          }
          m[b][e] = decayed * d[r];
        }
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          const float all = sum_of_column(row[e]);
          if (lane < 4) rows[warp * scan_rows + t * 16 + b * 8 + lane * 2 + e] = all;
        }
      }
      unsigned a[4];
      as_factor(a, m[0], m[1]);
      multiply_add_transposed(dx, a, dys, 0, t * 16);
    }
    const float skip = x.D != nullptr ? x.D[head] : 0.0f;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const float all = sum_of_quad(column[r]);
      if (token[r] >= n) continue;
      if (lane % 4 == 0) g.parts.column[at + token[r]] = all;
      bf16* to = g.dx[begin + token[r]] + head * scan_dim + lane % 4 * 2;
#pragma unroll
      for (int p = 0; p < 8; ++p) {
        const float2 dy = pair_at(dys, token[r], p * 8 + lane % 4 * 2);
        *reinterpret_cast<unsigned*>(to + p * 8) =
            pack_pair(dx[p][2 * r] + skip * dy.x, dx[p][2 * r + 1] + skip * dy.y);
      }
    }
    __syncthreads();
    const int t = static_cast<int>(threadIdx.x);
    if (t >= row0 && t < n) {
      float row = 0;
      for (int w = 0; w < 4 && row0 / 16 + w <= t / 16; ++w) row += rows[w * scan_rows + t];
      g.parts.row[half][at + t] = row;
    }
  }
}

constexpr int matrix_threads = 256;

template <int N>
struct MatrixShared {
  static constexpr int own = 0, other = own + scan_half * N, rows = other + scan_rows * N,
                       columns = rows + scan_half * scan_dim, state = columns + scan_rows * scan_dim,
                       end = state + scan_dim * N;  // elements
  static constexpr int bytes = end * 2 + (3 * scan_rows + 2 * scan_half) * 4;
};

// dC of 64 tokens t (rows; columns are tokens j <= t), or dB of 64 tokens j (columns are tokens t >= j):
//   dC_t = sum over heads of start_t H0^T dy_t + sum over j of (sum over heads of G_tj) B_j,  G_tj = dM_tj decay_tj d_j
//   dB_j = sum over heads of share_j dH^T x_j + sum over t of (sum over heads of G_tj) C_t
// Two warps share 16 rows: each takes one half of the state's columns and every second tile of pairs, which come together
// in shared memory at the end.
template <int N, bool of_B>
__device__ void matrix_gradient(const ScanArguments<bf16>& x, const ScanGradients<bf16>& g, unsigned char* shared,
                                int row0) {
  bf16* memory = reinterpret_cast<bf16*>(shared);
  using At = MatrixShared<N>;
  const SharedTile<N / 8> own{memory + At::own}, other{memory + At::other}, state{memory + At::state};
  const SharedTile<8> rows{memory + At::rows}, columns{memory + At::columns};
  float* floats = reinterpret_cast<float*>(memory + At::end);
  const HeadSteps steps{floats, floats + scan_rows};
  float* dots = floats + 2 * scan_rows;                          // [2][64]: of the state's halves
  int* firsts = reinterpret_cast<int*>(floats) + 3 * scan_rows;  // [128]: of each token's document
  const int c = static_cast<int>(blockIdx.x) / 2, group = static_cast<int>(blockIdx.y);
  const int begin = x.cut.begin(c), n = x.cut.size(c);
  const int warp = static_cast<int>(threadIdx.x) / 32 % 4, side = static_cast<int>(threadIdx.x) / 128;
  const int lane = static_cast<int>(threadIdx.x) % 32, half = side * (N / 2);
  const int strip = row0 / 16 + warp, first = of_B ? row0 : 0, last = of_B ? scan_rows : row0 + scan_half;
  const auto seen = [&](int tile) { return of_B ? tile >= strip : tile <= strip; };
  // What a row is with what comes by way of the state is part of the gradient of the steps.
  const auto keep_dots = [&](int head) {
    const int row = static_cast<int>(threadIdx.x), t = row0 + row;
    if (row >= scan_half || t >= n) return;
    const std::int64_t at = static_cast<std::int64_t>(head) * x.cut.tokens + begin + t;
    const float all = dots[row] + dots[scan_half + row];
    if (of_B)
      g.parts.reach[at] = x.steps.end[at] * all;
    else
      g.parts.before[at] = x.steps.start[at] * all;
  };
  copy_tokens<N / 8, matrix_threads>(own.data, of_B ? x.B : x.C, begin, n, row0, row0 + scan_half, row0, group * N);
  copy_tokens<N / 8, matrix_threads>(other.data, of_B ? x.C : x.B, begin, n, first, last, 0, group * N);
  commit_copies();
  int token[2], lower[2];
  own_tokens(token, lower, x.cut, begin, n, strip);
  if (threadIdx.x < scan_rows)
    firsts[threadIdx.x] =
        static_cast<int>(threadIdx.x) < n ? x.cut.first(begin, static_cast<int>(threadIdx.x)) : scan_rows;
  float out[N / 16][4] = {}, pairs[4][2][4] = {};
  const int first_head = group * x.per_group, end_head = first_head + x.per_group;
  for (int head = first_head; head < end_head; ++head) {
    const std::int64_t at = static_cast<std::int64_t>(head) * x.cut.tokens + begin;
    __syncthreads();
    if (head > first_head) keep_dots(head - 1);
    copy_tokens<8, matrix_threads>(rows.data, of_B ? x.x : g.dy, begin, n, row0, row0 + scan_half, row0,
                                   head * scan_dim);
    copy_tokens<8, matrix_threads>(columns.data, of_B ? g.dy : x.x, begin, n, first, last, 0, head * scan_dim);
    commit_copies();
    copy_state<N, matrix_threads>(state.data, x.state_of(of_B ? g.dstates : x.states, c, head), nullptr);
    steps.load(x.steps, at, n);
    wait_for_copies<0>();
    __syncthreads();
    unsigned a[4][4];
#pragma unroll
    for (int k = 0; k < 4; ++k) load_a(a[k], rows, warp * 16, k * 16);

    // By way of the state, 16 columns at a time.
    float factor[2], dot[2] = {0, 0};
    const int now = recomputed(lane);
#pragma unroll
    for (int r = 0; r < 2; ++r) factor[r] = token[r] < n ? (of_B ? x.steps.share : x.steps.start)[at + token[r]] : 0.0f;
#pragma unroll
    for (int part = 0; part < N / 32; ++part) {
      float moved[2][4] = {};
#pragma unroll
      for (int k = 0; k < 4; ++k) multiply_add_transposed(moved, a[k], state, half + part * 16, k * 16);
#pragma unroll
      for (int i = 0; i < 2; ++i)
#pragma unroll
        for (int r = 0; r < 2; ++r) {
          const float2 with = pair_at(own, warp * 16 + now / 4 + 8 * r, half + part * 16 + i * 8 + now % 4 * 2);
          dot[r] += moved[i][2 * r] * with.x + moved[i][2 * r + 1] * with.y;
          out[part * 2 + i][2 * r] += factor[r] * moved[i][2 * r];
          out[part * 2 + i][2 * r + 1] += factor[r] * moved[i][2 * r + 1];
        }
    }
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const float all = sum_of_quad(dot[r]);
      if (lane % 4 == 0) dots[side * scan_half + token[r] - row0] = all;
    }

    float sum[2];
#pragma unroll
    for (int r = 0; r < 2; ++r) sum[r] = steps.sum[token[r]];
#pragma unroll
    for (int q = 0; q < 4; ++q) {
      const int i = 2 * q + side;
      if (!seen(i)) continue;
      float dm[2][4] = {};
      multiply_add_rows(dm, rows, warp * 16, columns, i * 16);  // `rows` read again: registers are scarce here
#pragma unroll
      for (int b = 0; b < 2; ++b)
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          const int column = i * 16 + b * 8 + lane % 4 * 2 + e % 2, r = e / 2;
          bool together;
          if constexpr (of_B)
            together = column >= token[r] && firsts[column] <= token[r];
          else
            together = column <= token[r] && column >= lower[r];
          const float apart = of_B ? steps.sum[column] - sum[r] : sum[r] - steps.sum[column];
          const float value = dm[b][e] * quick_exp2(apart) * steps.dt[of_B ? token[r] : column];
          pairs[q][b][e] += together ? value : 0.0f;
        }
    }
  }
  __syncthreads();
  keep_dots(end_head - 1);
  const SharedTile<scan_rows / 8> all_pairs{columns.data};  // [64 rows][128]
  static_assert(scan_half * scan_rows <= scan_rows * scan_dim);
#pragma unroll
  for (int q = 0; q < 4; ++q) {
    const int i = 2 * q + side;
    if (!seen(i)) continue;
    store_tile(all_pairs, warp * 16, i * 2, pairs[q]);
  }
  __syncthreads();
#pragma unroll 1
  for (int i = 0; i < 8; ++i) {
    if (!seen(i)) continue;
    unsigned a[4];
    load_a(a, all_pairs, warp * 16, i * 16);
    multiply_add_transposed(out, a, other, half, i * 16);
  }
#pragma unroll
  for (int r = 0; r < 2; ++r)
    if (token[r] < n) store_row((of_B ? g.dB : g.dC)[begin + token[r]] + group * N + half, out, r);
}

template <int N>
__global__ void __launch_bounds__(matrix_threads, 2) matrix_kernel(ScanArguments<bf16> x, ScanGradients<bf16> g) {
  extern __shared__ __align__(128) unsigned char shared[];
  const int row0 = static_cast<int>(blockIdx.x) % 2 * scan_half;
  if (row0 >= x.cut.size(static_cast<int>(blockIdx.x) / 2)) return;
  if (blockIdx.z == 0)
    matrix_gradient<N, false>(x, g, shared, row0);
  else
    matrix_gradient<N, true>(x, g, shared, row0);
}

template <int N>
void backward(const char* name, CudaStream& stream, const ScanArguments<bf16>& x, const ScanGradients<bf16>& g) {
  const auto halves = static_cast<unsigned>(2 * x.cut.count());
  const dim3 blocks(halves, HeadRange::count(x.groups, x.per_group));
  launch_shared(name, stream, input_kernel<N>, blocks, scan_threads, InputShared<N>::bytes, x, g);
  const dim3 both(halves, static_cast<unsigned>(x.groups), 2);
  launch_shared(name, stream, matrix_kernel<N>, both, matrix_threads, MatrixShared<N>::bytes, x, g);
}

}  // namespace

void tensor_scan_backward(const char* name, CudaStream& stream, const ScanArguments<bf16>& x,
                          const ScanGradients<bf16>& g) {
  tensor_carry(name, stream, x, g.dy, x.C, x.steps.start, g.dstates, true);
  x.state == 128 ? backward<128>(name, stream, x, g) : backward<64>(name, stream, x, g);
}

}  // namespace weft::cuda
