// Queries and keys of multi-latent attention, token by token.
#include "weft/device/argument_checks.h"
#include "weft/device/cpu/kernels/dispatch.h"
#include "weft/device/operations/latent.h"

namespace weft::WEFT_ISA {

namespace {

// One head's turning part: pairs (a, b) -> (a c - b s, b c + a s), s negated where it turns back. out may be in.
template <RotaryStyle style, class Acc, class In, class Out>
WEFT_INLINE void turn_pairs(const In* in, Out* out, const Acc* cosine, const Acc* sine, std::int64_t half, Acc sign) {
#pragma omp simd
  for (std::int64_t i = 0; i < half; ++i) {
    const std::int64_t p = style == RotaryStyle::half_split ? i : 2 * i;
    const std::int64_t q = style == RotaryStyle::half_split ? i + half : 2 * i + 1;
    const Acc a = widen_to<Acc>(in[p]), b = widen_to<Acc>(in[q]), c = cosine[i], s = sign * sine[i];
    out[p] = narrow<Out>(a * c - b * s);
    out[q] = narrow<Out>(b * c + a * s);
  }
}
template <class Acc, class In, class Out>
void turn(const In* in, Out* out, const Acc* cosine, const Acc* sine, std::int64_t width, RotaryStyle style, Acc sign) {
  if (style == RotaryStyle::half_split)
    turn_pairs<RotaryStyle::half_split, Acc>(in, out, cosine, sine, width / 2, sign);
  else
    turn_pairs<RotaryStyle::interleaved, Acc>(in, out, cosine, sine, width / 2, sign);
}

// What both directions know of a token.
template <class Op, class Acc>
struct Angles {
  const Op& op;
  const std::int32_t* positions;

  explicit Angles(const Op& arguments) : op(arguments), positions(optional<std::int32_t>(arguments.positions)) {}
  std::int64_t position(std::int64_t t) const {
    const std::int64_t position = positions != nullptr ? positions[t] : t % op.length;
    require(position >= 0 && position < op.cosine.rows(), "latent_heads", "a position outside of the table of angles");
    return position;
  }
  const Acc* cosine(std::int64_t t) const { return row<Acc>(op.cosine, position(t)); }
  const Acc* sine(std::int64_t t) const { return row<Acc>(op.sine, position(t)); }
};

}  // namespace

void latent_heads(Stream& stream, const LatentHeads& op) {
  constexpr const char* name = "latent_heads";
  if (op.q.rows() == 0) return;
  check_arguments(name, op);
  const std::int64_t width = op.still + op.turning;
  with_storage(name, op.q.dtype, [&](auto type) {
    using T = typename decltype(type)::type;
    using Acc = Accumulator<T>;
    const Angles<LatentHeads, Acc> angles(op);
    split_rows(stream, op.q.rows(), 3 * op.heads * width, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t t = begin; t < end; ++t) {
        const Acc *cosine = angles.cosine(t), *sine = angles.sine(t);
        T *q = row<T>(op.q, t), *k = row<T>(op.k, t);
        const T *own = op.still > 0 ? row<T>(op.own, t) : nullptr, *shared = row<T>(op.shared, t);
        turn<Acc>(shared, k + op.still, cosine, sine, op.turning, op.style, Acc{1});
        for (std::int64_t h = 0; h < op.heads; ++h) {
          T* q_turning = q + h * width + op.still;
          turn<Acc>(q_turning, q_turning, cosine, sine, op.turning, op.style, Acc{1});
          std::copy_n(own + h * op.still, op.still, k + h * width);
          if (h > 0) std::copy_n(k + op.still, op.turning, k + h * width + op.still);
        }
      }
    });
  });
}

void latent_heads_backward(Stream& stream, const LatentHeadsBackward& op) {
  constexpr const char* name = "latent_heads_backward";
  if (op.dq.rows() == 0) return;
  check_arguments(name, op);
  const std::int64_t width = op.still + op.turning;
  with_storage(name, op.dq.dtype, [&](auto type) {
    using T = typename decltype(type)::type;
    using Acc = Accumulator<T>;
    const Angles<LatentHeadsBackward, Acc> angles(op);
    split_rows(stream, op.dq.rows(), 3 * op.heads * width, [&](std::int64_t begin, std::int64_t end) {
      Acc* sum = static_cast<Acc*>(thread_scratch(static_cast<std::size_t>(op.turning) * sizeof(Acc)));
      for (std::int64_t t = begin; t < end; ++t) {
        const Acc *cosine = angles.cosine(t), *sine = angles.sine(t);
        T* dq = row<T>(op.dq, t);
        const T* dk = row<T>(op.dk, t);
        T* down = op.still > 0 ? row<T>(op.down, t) : nullptr;
        std::fill_n(sum, op.turning, Acc{0});
        for (std::int64_t h = 0; h < op.heads; ++h) {
          T* dq_turning = dq + h * width + op.still;
          turn<Acc>(dq_turning, dq_turning, cosine, sine, op.turning, op.style, Acc{-1});
          std::copy_n(dk + h * width, op.still, down + h * op.still);
          const T* dk_turning = dk + h * width + op.still;
#pragma omp simd
          for (std::int64_t i = 0; i < op.turning; ++i) sum[i] += widen(dk_turning[i]);
        }
        turn<Acc>(sum, row<T>(op.dshared, t), cosine, sine, op.turning, op.style, Acc{-1});
      }
    });
  });
}

}  // namespace weft::WEFT_ISA
