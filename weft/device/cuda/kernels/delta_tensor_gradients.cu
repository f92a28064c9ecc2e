// The gated delta rule on tensor cores, backward: what is left of a chunk once U, dU and the states' gradients are there. A
// block takes a key head and its value heads one after the other.
#include "weft/device/cuda/kernels/delta_tensor.cuh"

namespace weft::cuda {

namespace {

constexpr int gradient_threads = 256;

struct GradientShared {
  static constexpr int k = 0, q = k + delta_tile, dy = q + delta_tile, U = dy + delta_tile, dR = U + delta_tile,
                       S = dR + delta_tile, dS = S + delta_square, T = dS + delta_square,
                       end = T + delta_rows * delta_rows;
  // gates; of both sides: columns of four warps, rows, what passes through the states; of queries' own: dR . v
  static constexpr int columns = delta_gates, rows = columns + 8 * delta_rows, before = rows + 2 * delta_rows,
                       reach = before + 2 * delta_rows, own = reach + delta_rows, beta = own + 2 * delta_rows,
                       floats = beta + delta_rows;
  static constexpr int bytes = end * 2 + floats * 4;
};

// A chunk of a key head. Warps 0-3 ("queries") make dq and dP, warps 4-7 ("keys") dk and dA; each has 16 tokens.
__global__ void __launch_bounds__(gradient_threads, 1)
    gradient_kernel(DeltaArguments<bf16> x, DeltaGradients<bf16> g, DeltaWork work) {
  extern __shared__ __align__(128) unsigned char shared[];
  bf16* memory = reinterpret_cast<bf16*>(shared);
  using At = GradientShared;
  const SharedTile<16> k{memory + At::k}, q{memory + At::q}, dy{memory + At::dy}, U{memory + At::U},
      dR{memory + At::dR}, S{memory + At::S}, dS{memory + At::dS};
  const SharedTile<8> T{memory + At::T}, X{memory + At::S}, Y{memory + At::S + delta_rows * delta_rows};
  float* floats = reinterpret_cast<float*>(memory + At::end);
  const HeadGates gates(floats);
  const int c = static_cast<int>(blockIdx.x), key = static_cast<int>(blockIdx.y), me = static_cast<int>(threadIdx.x);
  const int begin = x.cut.begin(c), n = x.cut.size(c), lane = me % 32, strip = me / 32 % 4;
  const bool of_keys = me >= scan_threads;
  const int side = of_keys ? 1 : 0;
  copy_chunk<gradient_threads>(k, x.k, begin, n, key * delta_dim);
  copy_chunk<gradient_threads>(q, x.q, begin, n, key * delta_dim);
  commit_copies();
  wait_for_copies<0>();
  __syncthreads();
  int token[2], lower[2];
  own_tokens(token, lower, x.cut, begin, n, strip);
  float products[4][2][4] = {}, pairs[4][2][4] = {}, out[16][4] = {};  // q k^T or k k^T; X or Y; dq or dk
#pragma unroll
  for (int d = 0; d < 8; ++d) {
    unsigned a[4];
    load_a(a, of_keys ? k : q, strip * 16, d * 16);
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      if (j > strip) continue;
      multiply_add(products[j], a, k, j * 16, d * 16);
    }
  }
  for (int head = key * x.per_key; head < (key + 1) * x.per_key; ++head) {
    const std::int64_t at = static_cast<std::int64_t>(head) * x.cut.tokens + begin;
    const Rows<bf16> Us = work.rows(work.U, head, x.cut.tokens), dUs = work.rows(work.dU, head, x.cut.tokens);
    const std::int64_t box = static_cast<std::int64_t>(c) * x.heads + head;
    __syncthreads();
    copy_chunk<gradient_threads>(dy, g.dy, begin, n, head * delta_dim);
    copy_chunk<gradient_threads>(U, Us, begin, n, 0);
    copy_chunk<gradient_threads>(dR, dUs, begin, n, 0);
    for (int i = me; i < delta_dim * 16; i += gradient_threads)
      copy_async(dS.at(i / 16, i % 16), work.dstate + box * delta_square + i * 8, true);
    for (int i = me; i < delta_rows * 8; i += gradient_threads)
      copy_async(T.at(i / 8, i % 8), work.T + box * delta_rows * delta_rows + i * 8, true);
    commit_copies();
    copy_square<gradient_threads>(S.data, x.state_of(c, head));
    gates.load(x.gates, at, n);
    wait_for_copies<0>();
    __syncthreads();

    // dR = T^T dU: 16 tokens and 64 columns per warp.
    float r64[8][4] = {};
#pragma unroll
    for (int t = 0; t < 4; ++t) {
      if (t < strip) continue;
      unsigned a[4];
      load_a_transposed(a, T, strip * 16, t * 16);
      multiply_add_transposed(r64, a, dR, side * 64, t * 16);
    }
    float dot = 0;  // dS . S0
    for (int i = me; i < delta_dim * 64; i += gradient_threads) {
      const float2 a = pair_at(S, i / 64, i % 64 * 2), b = pair_at(dS, i / 64, i % 64 * 2);
      dot += a.x * b.x + a.y * b.y;
    }
    dot = block_sum<gradient_threads>(dot);  // and waits: dU is no longer needed
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const float beta = gates.beta[token[r]];
      float own = 0;
#pragma unroll
      for (int e = 0; e < 8; ++e) {
        const int column = side * 64 + e * 8 + lane % 4 * 2;
        const float low = r64[e][2 * r], high = r64[e][2 * r + 1];
        *reinterpret_cast<unsigned*>(dR.at(token[r], column / 8) + column % 8) = pack_pair(low, high);
        if (token[r] < n) {
          const float2 v =
              unpack_pair(*reinterpret_cast<const unsigned*>(x.v[begin + token[r]] + head * delta_dim + column));
          own += low * v.x + high * v.y;
          *reinterpret_cast<unsigned*>(g.dv[begin + token[r]] + head * delta_dim + column) =
              pack_pair(beta * low, beta * high);
        }
      }
      own = sum_of_quad(own);
      if (lane % 4 == 0) floats[At::own + side * delta_rows + token[r]] = own;
    }
    __syncthreads();

    // Pairs of tokens.
    const SharedTile<16> mine = of_keys ? dR : dy;
    float rows[2] = {0, 0}, dbeta[2] = {0, 0};
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      if (j > strip) continue;
      float dm[2][4] = {};
      multiply_add_rows(dm, mine, strip * 16, U, j * 16);
#pragma unroll
      for (int b = 0; b < 2; ++b) {
        float columns[2] = {0, 0};
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          const int from = j * 16 + b * 8 + lane % 4 * 2 + e % 2, r = e / 2;
          const bool strict = from < token[r];
          float decay = pair_decay(gates, token[r], from, lower[r]);
          if (of_keys && !strict) decay = 0;
          const float beta = of_keys ? -gates.beta[token[r]] : 1.0f;  // dA = -dR U^T
          const float slope = dm[b][e] * decay, loss = strict ? slope * beta * products[j][b][e] : 0.0f;
          pairs[j][b][e] += slope * beta;
          if (of_keys) dbeta[r] -= slope * products[j][b][e];
          rows[r] += loss;
          columns[e % 2] += loss;
        }
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          const float all = sum_of_column(columns[e]);
          if (lane < 4) floats[At::columns + (side * 4 + strip) * delta_rows + j * 16 + b * 8 + lane * 2 + e] = all;
        }
      }
    }

    // By way of the states: S0 dy (queries), S0 dR and dS u (keys), 32 columns at a time.
    float before[2] = {0, 0}, reach[2] = {0, 0};
#pragma unroll
    for (int part = 0; part < 4; ++part) {
#pragma unroll
      for (int way = 0; way < 2; ++way) {
        if (way == 1 && !of_keys) continue;
        const SharedTile<16> from = way == 1 ? U : mine, state = way == 1 ? dS : S;
        float moved[4][4] = {};
        multiply_add_rows(moved, from, strip * 16, state, part * 32);
#pragma unroll
        for (int r = 0; r < 2; ++r) {
          const float start = gates.start[token[r]];
          const float factor = way == 1 ? gates.end[token[r]] : of_keys ? -start * gates.beta[token[r]] : start;
          float along = 0;
#pragma unroll
          for (int d = 0; d < 4; ++d) {
            const float2 with = pair_at(of_keys ? k : q, token[r], part * 32 + d * 8 + lane % 4 * 2);
            along += moved[d][2 * r] * with.x + moved[d][2 * r + 1] * with.y;
            out[part * 4 + d][2 * r] += factor * moved[d][2 * r];
            out[part * 4 + d][2 * r + 1] += factor * moved[d][2 * r + 1];
          }
          if (way == 1)
            reach[r] += along;
          else
            before[r] += along;
        }
      }
    }
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const float row = sum_of_quad(rows[r]), through = sum_of_quad(before[r]), onward = sum_of_quad(reach[r]),
                  slope = sum_of_quad(dbeta[r]);
      if (lane % 4 != 0) continue;
      floats[At::rows + side * delta_rows + token[r]] = row;
      floats[At::before + side * delta_rows + token[r]] = through;
      if (of_keys) {
        floats[At::reach + token[r]] = token[r] + 1 < n ? gates.end[token[r]] * onward : 0.0f;
        floats[At::beta + token[r]] = slope;
      }
    }
    __syncthreads();
    if (me < n) {
      const float start = gates.start[me], beta = gates.beta[me], through = floats[At::before + delta_rows + me];
      double ds = static_cast<double>(floats[At::rows + me]) + static_cast<double>(floats[At::rows + delta_rows + me]) +
                  static_cast<double>(start * floats[At::before + me]) - static_cast<double>(start * beta * through) -
                  static_cast<double>(floats[At::reach + me]);
      for (int s = 0; s < 2; ++s)
        for (int w = me / 16; w < 4; ++w)
          ds -= static_cast<double>(floats[At::columns + (s * 4 + w) * delta_rows + me]);
      if (me + 1 == n) {
        for (int t = 0; t < n; ++t) ds += static_cast<double>(floats[At::reach + t]);
        if (start != 0) ds += static_cast<double>(start * dot);
      }
      g.ds[at + me] = ds;
      g.dbeta[at + me] =
          floats[At::own + me] + floats[At::own + delta_rows + me] - start * through + floats[At::beta + me];
    }
  }

  // dq += X k;  dk += X^T q + (Y + Y^T) k
  __syncthreads();
  const SharedTile<8> whole = of_keys ? Y : X;
#pragma unroll
  for (int j = 0; j < 4; ++j) store_tile(whole, strip * 16, j * 2, pairs[j]);
  __syncthreads();
#pragma unroll
  for (int j = 0; j < 4; ++j) {
    unsigned a[4];
    if (j <= strip) {
      as_factor(a, pairs[j][0], pairs[j][1]);
      multiply_add_transposed(out, a, k, 0, j * 16);
    }
    if (j >= strip && of_keys) {
      load_a_transposed(a, X, strip * 16, j * 16);
      multiply_add_transposed(out, a, q, 0, j * 16);
      load_a_transposed(a, Y, strip * 16, j * 16);
      multiply_add_transposed(out, a, k, 0, j * 16);
    }
  }
#pragma unroll
  for (int r = 0; r < 2; ++r)
    if (token[r] < n) store_row((of_keys ? g.dk : g.dq)[begin + token[r]] + key * delta_dim, out, r);
}

}  // namespace

void delta_chunk_gradients(const char* name, CudaStream& stream, const DeltaArguments<bf16>& x,
                           const DeltaGradients<bf16>& g, const DeltaWork& work) {
  const dim3 keys(static_cast<unsigned>(x.cut.count()), static_cast<unsigned>(x.key_heads));
  launch_shared(name, stream, gradient_kernel, keys, gradient_threads, GradientShared::bytes, x, g, work);
}

}  // namespace weft::cuda
