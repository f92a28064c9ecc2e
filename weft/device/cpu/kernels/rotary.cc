#include "weft/device/argument_checks.h"
#include "weft/device/cpu/kernels/dispatch.h"
#include "weft/device/operations/attention.h"

namespace weft::WEFT_ISA {

namespace {

// One head: the first 2 * half elements turn, pair by pair. y may be x.
template <RotaryStyle style, class T, class Acc>
WEFT_INLINE void rotate(const T* x, T* y, const Acc* cosine, const Acc* sine, Acc sign, std::int64_t half) {
#pragma omp simd
  for (std::int64_t i = 0; i < half; ++i) {
    const std::int64_t at = style == RotaryStyle::half_split ? i : 2 * i;
    const std::int64_t pair = style == RotaryStyle::half_split ? i + half : 2 * i + 1;
    const Acc a = widen(x[at]), b = widen(x[pair]), c = cosine[i], s = sign * sine[i];
    y[at] = narrow<T>(a * c - b * s);
    y[pair] = narrow<T>(b * c + a * s);
  }
}

template <class T>
void rotate_rows(Stream& stream, const Rotary& op) {
  using Acc = Accumulator<T>;
  const std::int64_t half = op.width / 2;
  const std::int32_t* positions = optional<std::int32_t>(op.positions);
  const Acc sign = op.inverse ? -1 : 1;
  split_rows(stream, op.x.rows(), columns_of(op.x), [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t t = begin; t < end; ++t) {
      const std::int64_t position = positions != nullptr ? positions[t] : t % op.length;
      require(position >= 0 && position < op.cosine.rows(), "rotary", "a position outside of the table of angles");
      const Acc *cosine = row<Acc>(op.cosine, position), *sine = row<Acc>(op.sine, position);
      for (std::int64_t head = 0; head < op.heads; ++head) {
        const T* x = row<T>(op.x, t) + head * op.head_dim;
        T* y = row<T>(op.y, t) + head * op.head_dim;
        if (op.style == RotaryStyle::half_split)
          rotate<RotaryStyle::half_split>(x, y, cosine, sine, sign, half);
        else
          rotate<RotaryStyle::interleaved>(x, y, cosine, sine, sign, half);
        if (x != y)
          for (std::int64_t i = op.width; i < op.head_dim; ++i) y[i] = x[i];
      }
    }
  });
}

}  // namespace

void rotary(Stream& stream, const Rotary& op) {
  check_arguments("rotary", op);
  if (op.x.rows() == 0) return;
  with_storage("rotary", op.x.dtype, [&](auto type) {
    using T = typename decltype(type)::type;
    rotate_rows<T>(stream, op);
  });
}

}  // namespace weft::WEFT_ISA
