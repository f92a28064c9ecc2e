// rms_norm, a warp or a block for each part of a row, and its gradients.
#include "weft/device/argument_checks.h"
#include "weft/device/cuda/kernels/norm_gradients.cuh"
#include "weft/device/cuda/table.h"
#include "weft/device/operations/norms.h"

namespace weft::cuda {

namespace {

template <int threads, int V, class T, class W>
__global__ void norm_forward(Rows<const T> xs, const W* weights, Rows<T> ys, float* inverses, Parts parts, float eps,
                             float shift) {
  const std::int64_t index = part_index();
  if (index >= parts.rows * parts.count) return;
  const std::int64_t r = index / parts.count, part = index % parts.count;
  const T* x = xs[r] + part * parts.width;
  const W* weight = weights + part * parts.weight_step;
  T* y = ys[r] + part * parts.width;
  float sum = 0, v[V], w[V];
  for (std::int64_t j = threadIdx.x * V; j < parts.width; j += threads * V) {
    load<V>(x + j, v);
#pragma unroll
    for (int i = 0; i < V; ++i) sum += v[i] * v[i];
  }
  sum = part_sum<threads>(sum);
  const float inverse = 1.0f / sqrtf(sum / static_cast<float>(parts.width) + eps);
  if (inverses != nullptr && threadIdx.x == 0) inverses[index] = inverse;
  for (std::int64_t j = threadIdx.x * V; j < parts.width; j += threads * V) {
    load<V>(x + j, v);
    load<V>(weight + j, w);
#pragma unroll
    for (int i = 0; i < V; ++i) v[i] = v[i] * inverse * (w[i] + shift);
    store<V>(y + j, v);
  }
}

// The same with everything read once, weights and all before the first sum: nothing waits for a store.
template <int threads, int count, class T, class W>
__global__ void __launch_bounds__(threads* many_parts<threads, count>)
    held_forward(Rows<const T> xs, const W* weights, Rows<T> ys, float* inverses, Parts parts, float eps, float shift) {
  const std::int64_t index = part_index();
  if (index >= parts.rows * parts.count) return;
  const std::int64_t r = parts.count == 1 ? index : index / parts.count, part = index - r * parts.count;
  const int width = static_cast<int>(parts.width);
  T* y = ys[r] + part * parts.width;
  Held<T, threads, count> x;
  Held<W, threads, count> weight;
  x.read(xs[r] + part * parts.width, width);
  weight.read(weights + part * parts.weight_step, width);
  float sum = 0, v[pack];
  over_held<threads, count>(
      width, [&](int i, int e) { sum += x(i, e) * x(i, e); }, [](int) {});
  sum = part_sum<threads, many_parts<threads, count>>(sum);
  const float inverse = 1.0f / sqrtf(sum / static_cast<float>(width) + eps);
  if (inverses != nullptr && threadIdx.x == 0) inverses[index] = inverse;
  over_held<threads, count>(
      width, [&](int i, int e) { v[e] = x(i, e) * inverse * (weight(i, e) + shift); },
      [&](int i) { store<pack>(y + x.place(i), v); });
}

// With u = dy * weight:  dx = (residual +) inverse * u - x * inverse^3 * mean(u * x).
template <class T, class W, bool adds>
struct RmsGradients {
  using Element = T;
  using Weight = W;
  static constexpr int inputs = adds ? 3 : 2, outputs = 1;
  Rows<const T> in[inputs];  // x, dy, residual
  Rows<T> out[outputs];
  const W* weights;
  const float* inverses;
  float shift;
  __device__ float dot(const float (&v)[inputs], float w) const { return v[1] * (w + shift) * v[0]; }
  __device__ void gradients(const float (&v)[inputs], float w, float inverse, float along, float (&to)[1]) const {
    to[0] = v[1] * (w + shift) * inverse - v[0] * along;
    if constexpr (adds) to[0] += v[2];
  }
  __device__ float weight_term(const float (&v)[inputs], float inverse) const { return v[1] * v[0] * inverse; }
};

}  // namespace

void rms_norm(Stream& stream, const RmsNorm& op) {
  constexpr const char* name = "rms_norm";
  check_arguments(name, op);
  const Parts parts = parts_of(op.x, op.weight, op.groups);
  if (parts.rows == 0) return;
  with_storage_and(name, op.x.dtype, op.weight.dtype, [&](auto t, auto u) {
    using T = typename decltype(t)::type;
    using W = typename decltype(u)::type;
    const bool held =
        with_held<T>(parts, packs(parts.width, {&op.x, &op.y, &op.weight}), [&](auto threads, auto count) {
          constexpr int n = decltype(threads)::value;
          const Launch l = held_launch<n, many_parts<n, decltype(count)::value>>(parts);
          held_forward<n, decltype(count)::value, T, W><<<l.grid, l.block, 0, cuda_stream(stream).handle()>>>(
              rows_of<const T>(op.x), op.weight.as<W>(), rows_of<T>(op.y), optional<float>(op.inverse), parts,
              static_cast<float>(op.eps), op.zero_centred ? 1.0f : 0.0f);
          launched(name);
        });
    if (held) return;
    with_pack(parts.width, {&op.x, &op.y, &op.weight}, [&](auto v) {
      with_threads(parts, [&](auto threads) {
        constexpr int V = decltype(v)::value, n = decltype(threads)::value;
        const Launch l = launch_of<n>(parts);
        norm_forward<n, V, T, W><<<l.grid, l.block, 0, cuda_stream(stream).handle()>>>(
            rows_of<const T>(op.x), op.weight.as<W>(), rows_of<T>(op.y), optional<float>(op.inverse), parts,
            static_cast<float>(op.eps), op.zero_centred ? 1.0f : 0.0f);
        launched(name);
      });
    });
  });
}

void rms_norm_backward(Stream& stream, const RmsNormBackward& op) {
  constexpr const char* name = "rms_norm_backward";
  check_arguments(name, op);
  const Parts parts = parts_of(op.x, op.weight, op.groups);
  const bool packed = packs(parts.width, {&op.x, &op.dy, &op.dx, &op.weight, &op.residual});
  with_storage_and(name, op.x.dtype, op.weight.dtype, [&](auto t, auto u) {
    using T = typename decltype(t)::type;
    using W = typename decltype(u)::type;
    const Rows<const T> x = rows_of<const T>(op.x), dy = rows_of<const T>(op.dy);
    const Rows<T> dx = rows_of<T>(op.dx);
    const auto* weights = op.weight.as<W>();
    const auto* inverses = op.inverse.as<float>();
    const float shift = op.zero_centred ? 1.0f : 0.0f;
    with_storage_and(name, op.x.dtype, op.dweight.dtype, [&](auto, auto g) {
      const auto queue = [&](const auto& gradients) {
        queue_gradients<typename decltype(g)::type>(name, cuda_stream(stream), gradients, parts, packed, op.dweight,
                                                    op.store);
      };
      if (op.residual.given())
        queue(RmsGradients<T, W, true>{{x, dy, rows_of<const T>(op.residual)}, {dx}, weights, inverses, shift});
      else
        queue(RmsGradients<T, W, false>{{x, dy}, {dx}, weights, inverses, shift});
    });
  });
}

}  // namespace weft::cuda
