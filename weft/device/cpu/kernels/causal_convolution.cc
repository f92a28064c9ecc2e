// Causal depthwise convolution with few taps: channels side by side in vectors, a token at a time.
#include "weft/device/argument_checks.h"
#include "weft/device/cpu/kernels/activation_kinds.h"
#include "weft/device/cpu/kernels/dispatch.h"
#include "weft/device/operations/recurrent.h"

namespace weft::WEFT_ISA {

namespace {

constexpr std::int64_t channel_block = 256;  // sums of one block of channels stay in the L1 cache

struct Sizes {
  std::int64_t tokens, channels, taps, length;
  const std::int32_t* boundaries;

  explicit Sizes(const CausalConvolution& op) {
    tokens = op.x.rows();
    channels = op.weight.rows();
    taps = columns_of(op.weight);
    length = op.length > 0 ? op.length : std::max<std::int64_t>(tokens, 1);
    boundaries = op.boundaries.given() ? static_cast<const std::int32_t*>(op.boundaries.data) : nullptr;
  }

  std::int64_t document(std::int64_t t) const {
    const std::int64_t sequence = t - t % length;
    return boundaries != nullptr && boundaries[t] > sequence ? boundaries[t] : sequence;
  }
  // How many tokens before t it sees, at most taps - 1.
  std::int64_t reach(std::int64_t t) const { return std::min(taps - 1, t - document(t)); }
};

// The weight turned, [taps][channels], and the bias (zeros without one), in acc.
template <class W, class Acc>
struct Turned {
  Acc *weight, *bias;
  Turned(const Sizes& s, const CausalConvolution& op, Acc* room) : weight(room), bias(room + s.taps * s.channels) {
    const W* from = static_cast<const W*>(op.weight.data);
    const W* add = optional<W>(op.bias);
    for (std::int64_t c = 0; c < s.channels; ++c) {
      for (std::int64_t i = 0; i < s.taps; ++i) weight[i * s.channels + c] = widen_to<Acc>(from[c * s.taps + i]);
      bias[c] = add != nullptr ? widen_to<Acc>(add[c]) : Acc{0};
    }
  }
  static std::size_t bytes(const Sizes& s) { return static_cast<std::size_t>((s.taps + 1) * s.channels) * sizeof(Acc); }
};

// sums[c - c0] = bias + taps of token t, for channels [c0, c1).
template <class T, class W, class Acc>
void convolve(const Sizes& s, const Tensor& x, const Turned<W, Acc>& w, std::int64_t t, std::int64_t c0,
              std::int64_t c1, Acc* __restrict sums) {
  const Acc* bias = w.bias + c0;
  const std::int64_t n = c1 - c0;
#pragma omp simd
  for (std::int64_t c = 0; c < n; ++c) sums[c] = bias[c];
  for (std::int64_t back = s.reach(t); back >= 0; --back) {
    const T* from = row<T>(x, t - back) + c0;
    const Acc* weight = w.weight + (s.taps - 1 - back) * s.channels + c0;
#pragma omp simd
    for (std::int64_t c = 0; c < n; ++c) sums[c] += weight[c] * widen_to<Acc>(from[c]);
  }
}

template <class T, class W>
void forward(Stream& stream, const CausalConvolution& op) {
  using Acc = Accumulator<T>;
  const Sizes s(op);
  const Turned<W, Acc> w(s, op, static_cast<Acc*>(thread_scratch(Turned<W, Acc>::bytes(s))));
  split_rows(stream, s.tokens, s.channels * s.taps, [&](std::int64_t begin, std::int64_t end) {
    alignas(64) Acc sums[channel_block];
    for (std::int64_t t = begin; t < end; ++t)
      for (std::int64_t c0 = 0; c0 < s.channels; c0 += channel_block) {
        const std::int64_t c1 = std::min(c0 + channel_block, s.channels), n = c1 - c0;
        convolve<T>(s, op.x, w, t, c0, c1, sums);
        T* y = row<T>(op.y, t) + c0;
        if (op.silu) {
#pragma omp simd
          for (std::int64_t c = 0; c < n; ++c) y[c] = narrow<T>(sums[c] * gate_of(sums[c]));
        } else {
#pragma omp simd
          for (std::int64_t c = 0; c < n; ++c) y[c] = narrow<T>(sums[c]);
        }
      }
  });
}

// d[c - c0] = gradient of the sum before act, of token t.
template <class T, class W, class Acc>
void sum_gradient(const Sizes& s, const CausalConvolution& op, const Tensor& dys, const Turned<W, Acc>& w,
                  std::int64_t t, std::int64_t c0, std::int64_t c1, Acc* __restrict d) {
  const T* dy = row<T>(dys, t) + c0;
  const std::int64_t n = c1 - c0;
  if (!op.silu) {
#pragma omp simd
    for (std::int64_t c = 0; c < n; ++c) d[c] = widen_to<Acc>(dy[c]);
    return;
  }
  convolve<T>(s, op.x, w, t, c0, c1, d);
#pragma omp simd
  for (std::int64_t c = 0; c < n; ++c) {
    const Acc gate = gate_of(d[c]);
    d[c] = widen_to<Acc>(dy[c]) * (gate + d[c] * gate * (Acc{1} - gate));
  }
}

// dx of token t needs the sums' gradients of tokens t .. t + taps - 1: a ring of them for one block of channels.
template <class T, class W>
void backward(Stream& stream, const CausalConvolutionBackward& op) {
  using Acc = Accumulator<T>;
  const CausalConvolution& f = op.forward;
  const Sizes s(f);
  const Turned<W, Acc> w(s, f, static_cast<Acc*>(thread_scratch(Turned<W, Acc>::bytes(s))));
  constexpr std::int64_t rows_per_part = 64;
  const std::int64_t parts = (s.tokens + rows_per_part - 1) / rows_per_part;
  split_rows(stream, parts, rows_per_part * s.channels * s.taps, [&](std::int64_t begin, std::int64_t end) {
    alignas(64) Acc ring[most_taps][channel_block];
    alignas(64) Acc sums[channel_block];
    const std::int64_t t0 = begin * rows_per_part, t1 = std::min(end * rows_per_part, s.tokens);
    for (std::int64_t c0 = 0; c0 < s.channels; c0 += channel_block) {
      const std::int64_t c1 = std::min(c0 + channel_block, s.channels), n = c1 - c0;
      std::int64_t known = t0;  // gradients of tokens below it are in the ring
      for (std::int64_t t = t0; t < t1; ++t) {
        for (; known < std::min(t + s.taps, s.tokens); ++known)
          sum_gradient<T>(s, f, op.dy, w, known, c0, c1, ring[known % s.taps]);
        for (std::int64_t c = 0; c < n; ++c) sums[c] = 0;
        for (std::int64_t ahead = 0; ahead < s.taps && t + ahead < s.tokens; ++ahead) {
          if (s.document(t + ahead) > t) break;
          const Acc* d = ring[(t + ahead) % s.taps];
          const Acc* weight = w.weight + (s.taps - 1 - ahead) * s.channels + c0;
#pragma omp simd
          for (std::int64_t c = 0; c < n; ++c) sums[c] += weight[c] * d[c];
        }
        T* dx = row<T>(op.dx, t) + c0;
#pragma omp simd
        for (std::int64_t c = 0; c < n; ++c) dx[c] = narrow<T>(sums[c]);
      }
    }
  });
}

// A thread takes blocks of channels over all tokens: partial sums over fixed runs of tokens, then their sum.
template <class T, class W, class G>
void weight_gradient(Stream& stream, const CausalConvolutionWeightGradient& op) {
  using Acc = Accumulator<T>;
  const CausalConvolution& f = op.forward;
  const Sizes s(f);
  const Turned<W, Acc> w(s, f, static_cast<Acc*>(thread_scratch(Turned<W, Acc>::bytes(s))));
  constexpr std::int64_t block = 64, run = 128;
  const std::int64_t blocks = (s.channels + block - 1) / block;
  const auto put = [&](G* at, Acc value) {
    *at = narrow<G>(op.store == Store::add ? widen_to<Acc>(*at) + value : value);
  };
  split_rows(stream, blocks, s.tokens * s.taps * block, [&](std::int64_t begin, std::int64_t end) {
    alignas(64) Acc total[most_taps + 1][block], part[most_taps + 1][block], d[block];
    for (std::int64_t b = begin; b < end; ++b) {
      const std::int64_t c0 = b * block, c1 = std::min(c0 + block, s.channels), n = c1 - c0;
      for (auto& sums : total) std::fill_n(sums, block, Acc{0});
      for (std::int64_t t0 = 0; t0 < s.tokens; t0 += run) {
        for (auto& sums : part) std::fill_n(sums, block, Acc{0});
        for (std::int64_t t = t0; t < std::min(t0 + run, s.tokens); ++t) {
          sum_gradient<T>(s, f, op.dy, w, t, c0, c1, d);
          Acc* bias = part[s.taps];
#pragma omp simd
          for (std::int64_t c = 0; c < n; ++c) bias[c] += d[c];
          for (std::int64_t back = s.reach(t); back >= 0; --back) {
            const T* x = row<T>(f.x, t - back) + c0;
            Acc* sums = part[s.taps - 1 - back];
#pragma omp simd
            for (std::int64_t c = 0; c < n; ++c) sums[c] += d[c] * widen_to<Acc>(x[c]);
          }
        }
        for (std::int64_t i = 0; i <= s.taps; ++i)
          for (std::int64_t c = 0; c < n; ++c) total[i][c] += part[i][c];
      }
      for (std::int64_t c = 0; c < n; ++c) {
        for (std::int64_t i = 0; i < s.taps; ++i)
          put(static_cast<G*>(op.dweight.data) + (c0 + c) * s.taps + i, total[i][c]);
        if (op.dbias.given()) put(static_cast<G*>(op.dbias.data) + c0 + c, total[s.taps][c]);
      }
    }
  });
}

}  // namespace

void causal_convolution(Stream& stream, const CausalConvolution& op) {
  constexpr const char* name = "causal_convolution";
  check_arguments(name, op);
  with_storage_and(name, op.x.dtype, op.weight.dtype, [&](auto t, auto w) {
    forward<typename decltype(t)::type, typename decltype(w)::type>(stream, op);
  });
}

void causal_convolution_backward(Stream& stream, const CausalConvolutionBackward& op) {
  constexpr const char* name = "causal_convolution_backward";
  check_arguments(name, op);
  const Tensor& x = op.forward.x;
  with_storage_and(name, x.dtype, op.forward.weight.dtype, [&](auto t, auto w) {
    backward<typename decltype(t)::type, typename decltype(w)::type>(stream, op);
  });
}

void causal_convolution_weight_gradient(Stream& stream, const CausalConvolutionWeightGradient& op) {
  constexpr const char* name = "causal_convolution_weight_gradient";
  check_arguments(name, op);
  const CausalConvolution& f = op.forward;
  with_storage_and(name, f.x.dtype, f.weight.dtype, [&](auto t, auto w) {
    using T = typename decltype(t)::type;
    using W = typename decltype(w)::type;
    with_storage_and(name, f.x.dtype, op.dweight.dtype,
                     [&](auto, auto g) { weight_gradient<T, W, typename decltype(g)::type>(stream, op); });
  });
}

}  // namespace weft::WEFT_ISA
