// rms_norm and its input gradient: a warp or a block for each part of a row.
#include "weft/device/cuda/kernels/row_parts.cuh"
#include "weft/device/cuda/table.h"
#include "weft/device/operations/norms.h"

namespace weft::cuda {

namespace {

template <int threads, int V, class T, class W>
__global__ void norm_forward(Rows<const T> xs, const W* weights, Rows<T> ys, float* inverses, Parts parts, float eps,
                             float shift) {
  const std::int64_t index = part_index<threads>();
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

// With u = dy * weight:  dx = inverse * u - x * inverse^3 * mean(u * x).
template <int threads, int V, class T, class W>
__global__ void norm_backward(Rows<const T> xs, const W* weights, const float* inverses, Rows<const T> dys, Rows<T> dxs,
                              Rows<const T> residuals, Parts parts, float shift) {
  const std::int64_t index = part_index<threads>();
  if (index >= parts.rows * parts.count) return;
  const std::int64_t r = index / parts.count, part = index % parts.count, offset = part * parts.width;
  const T *x = xs[r] + offset, *dy = dys[r] + offset;
  const W* weight = weights + part * parts.weight_step;
  const float inverse = inverses[index];
  float dot = 0, v[V], w[V], d[V];
  for (std::int64_t j = threadIdx.x * V; j < parts.width; j += threads * V) {
    load<V>(x + j, v);
    load<V>(weight + j, w);
    load<V>(dy + j, d);
#pragma unroll
    for (int i = 0; i < V; ++i) dot += d[i] * (w[i] + shift) * v[i];
  }
  dot = part_sum<threads>(dot);
  const float along = inverse * inverse * inverse * dot / static_cast<float>(parts.width);
  for (std::int64_t j = threadIdx.x * V; j < parts.width; j += threads * V) {
    load<V>(x + j, v);
    load<V>(weight + j, w);
    load<V>(dy + j, d);
#pragma unroll
    for (int i = 0; i < V; ++i) d[i] = d[i] * (w[i] + shift) * inverse - v[i] * along;
    if (residuals.data != nullptr) {
      load<V>(residuals[r] + offset + j, v);
#pragma unroll
      for (int i = 0; i < V; ++i) d[i] += v[i];
    }
    store<V>(dxs[r] + offset + j, d);
  }
}

}  // namespace

void rms_norm(Stream& stream, const RmsNorm& op) {
  constexpr const char* name = "rms_norm";
  require(same_size(op.x, op.y) && op.x.dtype == op.y.dtype, name, "x and y differ in shape or dtype");
  const Parts parts = parts_of(name, op.x, op.weight, op.groups);
  if (parts.rows == 0) return;
  if (op.inverse.given()) check_inverse(name, op.inverse, op.x, op.groups);
  with_storage_and(name, op.x.dtype, op.weight.dtype, [&](auto t, auto u) {
    using T = typename decltype(t)::type;
    using W = typename decltype(u)::type;
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
  require(same_size(op.x, op.dy) && same_size(op.x, op.dx) && op.x.dtype == op.dy.dtype && op.x.dtype == op.dx.dtype,
          name, "x, dy and dx differ in shape or dtype");
  require(!op.residual.given() || (same_size(op.x, op.residual) && op.x.dtype == op.residual.dtype), name,
          "x and the residual differ in shape or dtype");
  const Parts parts = parts_of(name, op.x, op.weight, op.groups);
  if (parts.rows == 0) return;
  check_inverse(name, op.inverse, op.x, op.groups);
  with_storage_and(name, op.x.dtype, op.weight.dtype, [&](auto t, auto u) {
    using T = typename decltype(t)::type;
    using W = typename decltype(u)::type;
    with_pack(parts.width, {&op.x, &op.dy, &op.dx, &op.weight, &op.residual}, [&](auto v) {
      with_threads(parts, [&](auto threads) {
        constexpr int V = decltype(v)::value, n = decltype(threads)::value;
        const Launch l = launch_of<n>(parts);
        norm_backward<n, V, T, W><<<l.grid, l.block, 0, cuda_stream(stream).handle()>>>(
            rows_of<const T>(op.x), op.weight.as<W>(), op.inverse.as<float>(), rows_of<const T>(op.dy),
            rows_of<T>(op.dx), rows_of<const T>(op.residual), parts, op.zero_centred ? 1.0f : 0.0f);
        launched(name);
      });
    });
  });
}

}  // namespace weft::cuda
