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
  copy_tokens<16, gradient_threads>(k.data, x.k, begin, n, 0, delta_rows, 0, key * delta_dim);
  copy_tokens<16, gradient_threads>(q.data, x.q, begin, n, 0, delta_rows, 0, key * delta_dim);
  commit_copies();
  wait_for_copies<0>();
  __syncthreads();
  int token[2], lower[2];
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    token[r] = strip * 16 + lane / 4 + 8 * r;
    lower[r] = token[r] < n ? x.cut.first(begin, token[r]) : delta_rows;
  }
  float products[4][2][4] = {}, pairs[4][2][4] = {}, out[16][4] = {};  // q k^T or k k^T; X or Y; dq or dk
#pragma unroll
  for (int d = 0; d < 8; ++d) {
    unsigned a[4];
    load_a(a, of_keys ? k : q, strip * 16, d * 16);
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      if (j > strip) continue;
      unsigned b[4];
      load_b(b, k, j * 16, d * 16);
      multiply_add(products[j][0], a, b[0], b[1]);
      multiply_add(products[j][1], a, b[2], b[3]);
    }
  }
  for (int head = key * x.per_key; head < (key + 1) * x.per_key; ++head) {
    const std::int64_t at = static_cast<std::int64_t>(head) * x.cut.tokens + begin;
    const Rows<bf16> Us = work.rows(work.U, head, x.cut.tokens), dUs = work.rows(work.dU, head, x.cut.tokens);
    const std::int64_t box = static_cast<std::int64_t>(c) * x.heads + head;
    __syncthreads();
    copy_tokens<16, gradient_threads>(dy.data, g.dy, begin, n, 0, delta_rows, 0, head * delta_dim);
    copy_tokens<16, gradient_threads>(U.data, Rows<const bf16>{Us.data, Us.stride}, begin, n, 0, delta_rows, 0, 0);
    copy_tokens<16, gradient_threads>(dR.data, Rows<const bf16>{dUs.data, dUs.stride}, begin, n, 0, delta_rows, 0, 0);
    for (int i = me; i < delta_dim * 16; i += gradient_threads)
      copy_async(dS.at(i / 16, i % 16), work.dstate + box * delta_square + i * 8, true);
    for (int i = me; i < delta_rows * 8; i += gradient_threads)
      copy_async(T.at(i / 8, i % 8), work.T + box * delta_rows * delta_rows + i * 8, true);
    commit_copies();
    copy_square<gradient_threads>(S.data, x.state_of(c, head));
    gates.load(x.gates, at, n);
    wait_for_copies<0>();
    __syncthreads();

    // dR = T^T dU: a warp 16 tokens and 64 columns.
    float r64[8][4] = {};
#pragma unroll
    for (int t = 0; t < 4; ++t) {
      if (t < strip) continue;
      unsigned a[4];
      load_a_transposed(a, T, strip * 16, t * 16);
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        unsigned b[4];
        load_b_transposed(b, dR, side * 64 + e * 16, t * 16);
        multiply_add(r64[2 * e], a, b[0], b[1]);
        multiply_add(r64[2 * e + 1], a, b[2], b[3]);
      }
    }
    float dot = 0;  // dS . S0
    for (int i = me; i < delta_dim * 64; i += gradient_threads) {
      const float2 a = pair_at(S, i / 64, i % 64 * 2), b = pair_at(dS, i / 64, i % 64 * 2);
      dot += a.x * b.x + a.y * b.y;
    }
    dot = block_sum<gradient_threads>(dot);  // and waits: dU has served
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
          const unsigned v = *reinterpret_cast<const unsigned*>(x.v[begin + token[r]] + head * delta_dim + column);
          own += low * __uint_as_float(v << 16) + high * __uint_as_float(v & 0xffff0000u);
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
#pragma unroll
      for (int e = 0; e < 8; ++e) {
        unsigned a[4], b[4];
        load_a(a, mine, strip * 16, e * 16);
        load_b(b, U, j * 16, e * 16);
        multiply_add(dm[0], a, b[0], b[1]);
        multiply_add(dm[1], a, b[2], b[3]);
      }
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
#pragma unroll
          for (int step = 4; step < 32; step *= 2) columns[e] += __shfl_xor_sync(all_lanes, columns[e], step);
          if (lane < 4)
            floats[At::columns + (side * 4 + strip) * delta_rows + j * 16 + b * 8 + lane * 2 + e] = columns[e];
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
#pragma unroll
        for (int e = 0; e < 8; ++e) {
          unsigned a[4];
          load_a(a, from, strip * 16, e * 16);
#pragma unroll
          for (int d = 0; d < 2; ++d) {
            unsigned b[4];
            load_b(b, state, part * 32 + d * 16, e * 16);
            multiply_add(moved[2 * d], a, b[0], b[1]);
            multiply_add(moved[2 * d + 1], a, b[2], b[3]);
          }
        }
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
      const float row = sum_of_quad(rows[r]), through = sum_of_quad(before[r]), behind = sum_of_quad(reach[r]),
                  slope = sum_of_quad(dbeta[r]);
      if (lane % 4 != 0) continue;
      floats[At::rows + side * delta_rows + token[r]] = row;
      floats[At::before + side * delta_rows + token[r]] = through;
      if (of_keys) {
        floats[At::reach + token[r]] = token[r] + 1 < n ? gates.end[token[r]] * behind : 0.0f;
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
  for (int j = 0; j < 4; ++j)
#pragma unroll
    for (int b = 0; b < 2; ++b)
#pragma unroll
      for (int r = 0; r < 2; ++r)
        *reinterpret_cast<unsigned*>(whole.at(token[r], j * 2 + b) + lane % 4 * 2) =
            pack_pair(pairs[j][b][2 * r], pairs[j][b][2 * r + 1]);
  __syncthreads();
  const auto multiply = [&](const unsigned(&a)[4], const SharedTile<16>& with, int from) {
#pragma unroll
    for (int d = 0; d < 8; ++d) {
      unsigned b[4];
      load_b_transposed(b, with, d * 16, from * 16);
      multiply_add(out[2 * d], a, b[0], b[1]);
      multiply_add(out[2 * d + 1], a, b[2], b[3]);
    }
  };
#pragma unroll
  for (int j = 0; j < 4; ++j) {
    unsigned a[4];
    if (j <= strip) {
      as_factor(a, pairs[j]);
      multiply(a, k, j);
    }
    if (j >= strip && of_keys) {
      load_a_transposed(a, X, strip * 16, j * 16);
      multiply(a, q, j);
      load_a_transposed(a, Y, strip * 16, j * 16);
      multiply(a, k, j);
    }
  }
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    if (token[r] >= n) continue;
    bf16* to = (of_keys ? g.dk : g.dq)[begin + token[r]] + key * delta_dim + lane % 4 * 2;
#pragma unroll
    for (int d = 0; d < 16; ++d) *reinterpret_cast<unsigned*>(to + d * 8) = pack_pair(out[d][2 * r], out[d][2 * r + 1]);
  }
}

}  // namespace

void delta_chunk_gradients(const char* name, CudaStream& stream, const DeltaArguments<bf16>& x,
                           const DeltaGradients<bf16>& g, const DeltaWork& work) {
  allow_shared(name, gradient_kernel, GradientShared::bytes);
  const dim3 keys(static_cast<unsigned>(x.cut.count()), static_cast<unsigned>(x.key_heads));
  gradient_kernel<<<keys, gradient_threads, GradientShared::bytes, stream.handle()>>>(x, g, work);
  launched(name);
}

}  // namespace weft::cuda
