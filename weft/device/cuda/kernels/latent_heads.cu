// Queries and keys of multi-latent attention: a thread for each pair that turns and each element that does not.
#include "weft/device/argument_checks.h"
#include "weft/device/cuda/kernels/launch.cuh"
#include "weft/device/cuda/table.h"
#include "weft/device/operations/latent.h"

namespace weft::cuda {

namespace {

// Where a pair is within the turning part, and how its position turns it.
struct Angles {
  Rows<const float> cosine, sine;
  const std::int32_t* positions;
  unsigned length, half;
  bool interleaved;
  __device__ unsigned first(unsigned i) const { return interleaved ? 2 * i : i; }
  __device__ unsigned second(unsigned i) const { return interleaved ? 2 * i + 1 : i + half; }
  template <class T>
  __device__ void turn(std::int64_t t, unsigned i, float a, float b, float sign, T* to) const {
    const unsigned position = positions != nullptr ? positions[t] : static_cast<unsigned>(t) % length;
    const float c = cosine[position][i], s = sign * sine[position][i];
    to[first(i)] = narrow<T>(a * c - b * s);
    to[second(i)] = narrow<T>(b * c + a * s);
  }
};

// A unit is a pair of a head or, after its pairs, an element that does not turn.
template <class T>
struct Make {
  Angles angles;
  Rows<T> q, k;
  Rows<const T> own, shared;
  unsigned still, width, units;
  __device__ void operator()(std::int64_t t, std::int64_t unit) const {
    const unsigned head = static_cast<unsigned>(unit) / units, i = static_cast<unsigned>(unit) - head * units;
    T* to = k[t] + head * width;
    if (i >= angles.half) {
      to[i - angles.half] = own[t][head * still + i - angles.half];
      return;
    }
    T* query = q[t] + head * width + still;
    const unsigned p = angles.first(i), r = angles.second(i);
    angles.turn(t, i, widen(query[p]), widen(query[r]), 1.0f, query);
    angles.turn(t, i, widen(shared[t][p]), widen(shared[t][r]), 1.0f, to + still);
  }
};

// After the heads' units, one for each pair of the shared part.
template <class T>
struct Unmake {
  Angles angles;
  Rows<T> dq, down, dshared;
  Rows<const T> dk;
  unsigned still, width, units, heads;
  __device__ void operator()(std::int64_t t, std::int64_t unit) const {
    const unsigned head = static_cast<unsigned>(unit) / units, i = static_cast<unsigned>(unit) - head * units;
    const unsigned p = angles.first(i), r = angles.second(i);
    if (head == heads) {
      float a = 0, b = 0;
      for (unsigned h = 0; h < heads; ++h) {
        a += widen(dk[t][h * width + still + p]);
        b += widen(dk[t][h * width + still + r]);
      }
      return angles.turn(t, i, a, b, -1.0f, dshared[t]);
    }
    if (i >= angles.half) {
      down[t][head * still + i - angles.half] = dk[t][head * width + i - angles.half];
      return;
    }
    T* query = dq[t] + head * width + still;
    angles.turn(t, i, widen(query[p]), widen(query[r]), -1.0f, query);
  }
};

template <class Op>
Angles angles_of(const Op& op) {
  return {rows_of<const float>(op.cosine),
          rows_of<const float>(op.sine),
          optional<const std::int32_t>(op.positions),
          static_cast<unsigned>(op.length),
          static_cast<unsigned>(op.turning / 2),
          op.style == RotaryStyle::interleaved};
}

}  // namespace

void latent_heads(Stream& stream, const LatentHeads& op) {
  constexpr const char* name = "latent_heads";
  if (op.q.rows() == 0) return;
  check_arguments(name, op);
  const Angles angles = angles_of(op);
  const auto still = static_cast<unsigned>(op.still), units = still + angles.half;
  with_storage(name, op.q.dtype, [&](auto type) {
    using T = typename decltype(type)::type;
    const Make<T> make{angles,
                       rows_of<T>(op.q),
                       rows_of<T>(op.k),
                       rows_of<const T>(op.own),
                       rows_of<const T>(op.shared),
                       still,
                       static_cast<unsigned>(op.still + op.turning),
                       units};
    launch_over_rows(name, cuda_stream(stream), make, op.q.rows(), op.heads * units);
  });
}

void latent_heads_backward(Stream& stream, const LatentHeadsBackward& op) {
  constexpr const char* name = "latent_heads_backward";
  if (op.dq.rows() == 0) return;
  check_arguments(name, op);
  const Angles angles = angles_of(op);
  const auto still = static_cast<unsigned>(op.still), units = still + angles.half;
  with_storage(name, op.dq.dtype, [&](auto type) {
    using T = typename decltype(type)::type;
    const Unmake<T> unmake{angles,
                           rows_of<T>(op.dq),
                           rows_of<T>(op.down),
                           rows_of<T>(op.dshared),
                           rows_of<const T>(op.dk),
                           still,
                           static_cast<unsigned>(op.still + op.turning),
                           units,
                           static_cast<unsigned>(op.heads)};
    launch_over_rows(name, cuda_stream(stream), unmake, op.dq.rows(), op.heads * units + angles.half);
  });
}

}  // namespace weft::cuda
