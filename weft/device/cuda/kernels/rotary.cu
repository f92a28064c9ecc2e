#include "weft/device/argument_checks.h"
#include "weft/device/cuda/kernels/launch.cuh"
#include "weft/device/cuda/table.h"
#include "weft/device/operations/attention.h"

namespace weft::cuda {

namespace {

// A unit is a pair of a head, or (after the pairs) an element that does not turn.
template <class T>
struct Turn {
  Rows<const T> x;
  Rows<T> y;
  Rows<const float> cosine, sine;
  const std::int32_t* positions;
  unsigned length, head_dim, half, units;  // units of a head
  float sign;
  bool interleaved;
  __device__ void operator()(std::int64_t t, std::int64_t unit) const {
    const unsigned head = static_cast<unsigned>(unit) / units, i = static_cast<unsigned>(unit) - head * units;
    const T* from = x[t] + head * head_dim;
    T* to = y[t] + head * head_dim;
    if (i >= half) {
      to[i + half] = from[i + half];
      return;
    }
    const unsigned position = positions != nullptr ? positions[t] : static_cast<unsigned>(t) % length;
    const unsigned at = interleaved ? 2 * i : i, pair = interleaved ? 2 * i + 1 : i + half;
    const float a = widen(from[at]), b = widen(from[pair]), c = cosine[position][i], s = sign * sine[position][i];
    to[at] = narrow<T>(a * c - b * s);
    to[pair] = narrow<T>(b * c + a * s);
  }
};

// Eight pairs at once, for heads that turn in place with their halves apart: a unit is 8 elements of a first half.
struct TurnEight {
  Rows<bf16> x;
  Rows<const float> cosine, sine;
  const std::int32_t* positions;
  unsigned length, head_dim, half, units;  // units of a head
  float sign;
  __device__ void operator()(std::int64_t t, std::int64_t unit) const {
    const unsigned head = static_cast<unsigned>(unit) / units, i = (static_cast<unsigned>(unit) - head * units) * 8;
    bf16* at = x[t] + head * head_dim + i;
    const unsigned position = positions != nullptr ? positions[t] : static_cast<unsigned>(t) % length;
    float a[8], b[8], c[8], s[8];
    load<8>(at, a);
    load<8>(at + half, b);
    load<8>(cosine[position] + i, c);
    load<8>(sine[position] + i, s);
#pragma unroll
    for (int e = 0; e < 8; ++e) {
      const float first = a[e], by = sign * s[e];
      a[e] = first * c[e] - b[e] * by;
      b[e] = b[e] * c[e] + first * by;
    }
    store<8>(at, a);
    store<8>(at + half, b);
  }
};

}  // namespace

void rotary(Stream& stream, const Rotary& op) {
  constexpr const char* name = "rotary";
  check_arguments(name, op);
  if (op.x.rows() == 0) return;
  const bool in_place = op.x.data == op.y.data;
  if (in_place && op.x.dtype == DType::bf16 && op.style == RotaryStyle::half_split && op.head_dim % 8 == 0 &&
      packs(op.width / 2, {&op.x, &op.cosine, &op.sine}) && op.width > 0) {
    const TurnEight turn{rows_of<bf16>(op.x),
                         rows_of<const float>(op.cosine),
                         rows_of<const float>(op.sine),
                         optional<const std::int32_t>(op.positions),
                         static_cast<unsigned>(op.length),
                         static_cast<unsigned>(op.head_dim),
                         static_cast<unsigned>(op.width / 2),
                         static_cast<unsigned>(op.width / 16),
                         op.inverse ? -1.0f : 1.0f};
    return launch_over_rows(name, cuda_stream(stream), turn, op.x.rows(), op.heads * (op.width / 16));
  }
  with_storage(name, op.x.dtype, [&](auto type) {
    using T = typename decltype(type)::type;
    const std::int64_t half = op.width / 2, units = in_place ? half : op.head_dim - half;
    const Turn<T> turn{rows_of<const T>(op.x),
                       rows_of<T>(op.y),
                       rows_of<const float>(op.cosine),
                       rows_of<const float>(op.sine),
                       optional<const std::int32_t>(op.positions),
                       static_cast<unsigned>(op.length),
                       static_cast<unsigned>(op.head_dim),
                       static_cast<unsigned>(half),
                       static_cast<unsigned>(units),
                       op.inverse ? -1.0f : 1.0f,
                       op.style == RotaryStyle::interleaved};
    launch_over_rows(name, cuda_stream(stream), turn, op.x.rows(), op.heads * units);
  });
}

}  // namespace weft::cuda
