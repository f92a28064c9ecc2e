// The gated delta rule on tensor cores, backward. With the names of delta_tensor.cuh and delta_rule_backward.cc:
//   dU = P^T dy + F K dS;   the state's gradient before the chunk: carry dS + (E q)^T dy - W^T dU
// One kernel makes U and P^T dy of all chunks, one carries dS back along the sequence (a block per head and 64 of its
// columns), and one (delta_tensor_gradients.cu) everything else of a chunk and key head.
#include "weft/device/cuda/kernels/delta_tensor.cuh"

namespace weft::cuda {

namespace {

struct PrepareShared {
  static constexpr int W = 0, q = W + delta_tile, k = q + delta_tile, dy = k + delta_tile, S = dy + delta_tile,
                       end = S + delta_square;
  static constexpr int bytes = end * 2 + delta_gates * 4;
};

// U = U1 - W S0 in place, and dU = P^T dy.
__global__ void __launch_bounds__(scan_threads, 2)
    prepare_kernel(DeltaArguments<bf16> x, DeltaGradients<bf16> g, DeltaWork work) {
  extern __shared__ __align__(128) unsigned char shared[];
  bf16* memory = reinterpret_cast<bf16*>(shared);
  using At = PrepareShared;
  const SharedTile<16> W{memory + At::W}, q{memory + At::q}, k{memory + At::k}, dy{memory + At::dy}, S{memory + At::S};
  const HeadGates gates(reinterpret_cast<float*>(memory + At::end));
  const int c = static_cast<int>(blockIdx.x), head = static_cast<int>(blockIdx.y), key = head / x.per_key * delta_dim;
  const int begin = x.cut.begin(c), n = x.cut.size(c);
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const Rows<bf16> Us = work.rows(work.U, head, x.cut.tokens), dUs = work.rows(work.dU, head, x.cut.tokens);
  copy_chunk(W, work.rows(work.W, head, x.cut.tokens), begin, n, 0);
  copy_chunk(q, x.q, begin, n, key);
  copy_chunk(k, x.k, begin, n, key);
  copy_chunk(dy, g.dy, begin, n, head * delta_dim);
  commit_copies();
  copy_square<scan_threads>(S.data, x.state_of(c, head));
  gates.load(x.gates, static_cast<std::int64_t>(head) * x.cut.tokens + begin, n);
  wait_for_copies<0>();
  __syncthreads();
  float out[16][4] = {};
  multiply_add_rows_transposed(out, W, warp * 16, S);
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const int t = warp * 16 + lane / 4 + 8 * r;
    if (t >= n) continue;
#pragma unroll
    for (int e = 0; e < 16; ++e) {
      auto* at = reinterpret_cast<unsigned*>(Us[begin + t] + e * 8 + lane % 4 * 2);
      const float2 own = unpack_pair(*at);
      *at = pack_pair(own.x - out[e][2 * r], own.y - out[e][2 * r + 1]);
    }
  }
#pragma unroll
  for (int e = 0; e < 16; ++e)
#pragma unroll
    for (int i = 0; i < 4; ++i) out[e][i] = 0;
#pragma unroll
  for (int t = 0; t < 4; ++t) {
    if (t < warp) continue;
    float pairs[2][4] = {};
    multiply_add_rows(pairs, k, warp * 16, q, t * 16);
#pragma unroll
    for (int b = 0; b < 2; ++b)
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const int j = warp * 16 + lane / 4 + 8 * (e / 2), to = t * 16 + b * 8 + lane % 4 * 2 + e % 2;
        pairs[b][e] *= to < n ? pair_decay(gates, to, j, x.cut.first(begin, to)) : 0.0f;
      }
    unsigned a[4];
    as_factor(a, pairs[0], pairs[1]);
    multiply_add_transposed(out, a, dy, 0, t * 16);
  }
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const int t = warp * 16 + lane / 4 + 8 * r;
    if (t < n) store_row(dUs[begin + t], out, r);
  }
}

struct BackShared {
  static constexpr int stage = 3 * delta_tile + 2 * delta_rows * 64;  // k, W, q, and 64 columns of dy and P^T dy
  static constexpr int S = 2 * stage, U = S + delta_dim * 64, end = U + delta_rows * 64;
  static constexpr int bytes = end * 2 + 2 * (2 * delta_rows + 4) * 4;
};

// A block: one head, 64 columns of the gradient of its state, in registers; dU becomes whole.
__global__ void __launch_bounds__(scan_threads)
    carry_back_kernel(DeltaArguments<bf16> x, DeltaGradients<bf16> g, DeltaWork work) {
  extern __shared__ __align__(128) unsigned char shared[];
  bf16* memory = reinterpret_cast<bf16*>(shared);
  const SharedTile<8> S{memory + BackShared::S}, minus{memory + BackShared::U};
  float* ends = reinterpret_cast<float*>(memory + BackShared::end);  // [2][64], then starts, then carries
  float *starts = ends + 2 * delta_rows, *carries = starts + 2 * delta_rows;
  const int head = static_cast<int>(blockIdx.x) / 2, part = static_cast<int>(blockIdx.x) % 2 * 64;
  const int key = head / x.per_key * delta_dim;
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const int per = x.cut.per_sequence, last = static_cast<int>(blockIdx.y) * per + per - 1;
  const std::int64_t at = static_cast<std::int64_t>(head) * x.cut.tokens;
  const Rows<bf16> W = work.rows(work.W, head, x.cut.tokens), dU = work.rows(work.dU, head, x.cut.tokens);
  const auto fetch = [&](int i) {
    const int begin = x.cut.begin(last - i), n = x.cut.size(last - i), stage = i & 1;
    bf16* to = memory + stage * BackShared::stage;
    copy_chunk(SharedTile<16>{to}, x.k, begin, n, key);
    copy_chunk(SharedTile<16>{to + delta_tile}, W, begin, n, 0);
    copy_chunk(SharedTile<16>{to + 2 * delta_tile}, x.q, begin, n, key);
    copy_chunk(SharedTile<8>{to + 3 * delta_tile}, g.dy, begin, n, head * delta_dim + part);
    copy_chunk(SharedTile<8>{to + 3 * delta_tile + delta_rows * 64}, dU, begin, n, part);
    const int t = static_cast<int>(threadIdx.x) % delta_rows;
    const std::int64_t from = at + begin + (t < n ? t : 0);
    if (threadIdx.x < delta_rows)
      copy_async4(ends + stage * delta_rows + t, x.gates.end + from, t < n);
    else
      copy_async4(starts + stage * delta_rows + t, x.gates.start + from, t < n);
    if (threadIdx.x == 0) copy_async4(carries + stage * 4, x.gates.start + at + begin + n - 1, true);
  };
  float h[2][8][4] = {};  // rows warp * 32 + 16 i
  fetch(0);
  commit_copies();
  for (int i = 0; i < per; ++i) {
    const int c = last - i, begin = x.cut.begin(c), n = x.cut.size(c), stage = i & 1;
    bf16* dstate = work.dstate + (static_cast<std::int64_t>(c) * x.heads + head) * delta_square + part + lane % 4 * 2;
#pragma unroll
    for (int s = 0; s < 2; ++s)
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const int row = warp * 32 + s * 16 + lane / 4 + 8 * r;
#pragma unroll
        for (int e = 0; e < 8; ++e) {
          const unsigned pair = pack_pair(h[s][e][2 * r], h[s][e][2 * r + 1]);
          *reinterpret_cast<unsigned*>(dstate + row * delta_dim + e * 8) = pair;
          *reinterpret_cast<unsigned*>(S.at(row, e) + lane % 4 * 2) = pair;
        }
      }
    if (i + 1 < per) fetch(i + 1);
    commit_copies();
    wait_for_copies<1>();
    __syncthreads();
    bf16* tiles = memory + stage * BackShared::stage;
    const SharedTile<16> k{tiles}, w{tiles + delta_tile}, q{tiles + 2 * delta_tile};
    const SharedTile<8> dy{tiles + 3 * delta_tile}, du1{tiles + 3 * delta_tile + delta_rows * 64};
    float u[8][4] = {};
    multiply_add_rows_transposed(u, k, warp * 16, S);
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int t = warp * 16 + lane / 4 + 8 * r;
      const float end = ends[stage * delta_rows + t];
#pragma unroll
      for (int e = 0; e < 8; ++e) {
        const float2 own = pair_at(du1, t, e * 8 + lane % 4 * 2);
        const float low = own.x + end * u[e][2 * r], high = own.y + end * u[e][2 * r + 1];
        if (t < n) *reinterpret_cast<unsigned*>(dU[begin + t] + part + e * 8 + lane % 4 * 2) = pack_pair(low, high);
        *reinterpret_cast<unsigned*>(minus.at(t, e) + lane % 4 * 2) = pack_pair(-low, -high);
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
        unsigned a[4], m[4];
        load_a_transposed(a, q, warp * 32 + s * 16, t * 16);
        scale_columns(a, starts + stage * delta_rows, t * 16);
        load_a_transposed(m, w, warp * 32 + s * 16, t * 16);
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          unsigned b[4];
          load_b_transposed(b, dy, e * 16, t * 16);
          multiply_add(h[s][2 * e], a, b[0], b[1]);
          multiply_add(h[s][2 * e + 1], a, b[2], b[3]);
          load_b_transposed(b, minus, e * 16, t * 16);
          multiply_add(h[s][2 * e], m, b[0], b[1]);
          multiply_add(h[s][2 * e + 1], m, b[2], b[3]);
        }
      }
    __syncthreads();
  }
}

}  // namespace

void tensor_delta_backward(const char* name, CudaStream& stream, const DeltaArguments<bf16>& x,
                           const DeltaGradients<bf16>& g, const DeltaWork& work) {
  solve_chunks(name, stream, x, work);
  const auto chunks = static_cast<unsigned>(x.cut.count()), heads = static_cast<unsigned>(x.heads);
  launch_shared(name, stream, prepare_kernel, dim3(chunks, heads), scan_threads, PrepareShared::bytes, x, g, work);
  const dim3 halves(2 * heads, static_cast<unsigned>(x.cut.sequences));
  launch_shared(name, stream, carry_back_kernel, halves, scan_threads, BackShared::bytes, x, g, work);
  delta_chunk_gradients(name, stream, x, g, work);
}

}  // namespace weft::cuda
