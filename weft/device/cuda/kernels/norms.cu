// rms_norm and its input gradient: a warp or a block for each part of a row.
#include "weft/device/cuda/kernels/row_parts.cuh"
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

// With u = dy * weight:  dx = inverse * u - x * inverse^3 * mean(u * x).
template <int threads, int V, class T, class W>
__global__ void norm_backward(Rows<const T> xs, const W* weights, const float* inverses, Rows<const T> dys, Rows<T> dxs,
                              Rows<const T> residuals, Parts parts, float shift) {
  const std::int64_t index = part_index();
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

// The same with everything read once, weights and all before the first sum: nothing waits behind a store.
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

template <int threads, int count, bool adds, class T, class W>
__global__ void __launch_bounds__(threads* many_parts<threads, count>)
    held_backward(Rows<const T> xs, const W* weights, const float* inverses, Rows<const T> dys, Rows<T> dxs,
                  Rows<const T> residuals, Parts parts, float shift) {
  const std::int64_t index = part_index();
  if (index >= parts.rows * parts.count) return;
  const std::int64_t r = parts.count == 1 ? index : index / parts.count, part = index - r * parts.count;
  const std::int64_t offset = part * parts.width;
  const int width = static_cast<int>(parts.width);
  Held<T, threads, count> x, dy, residual;
  Held<W, threads, count> weight;
  x.read(xs[r] + offset, width);
  dy.read(dys[r] + offset, width);
  if constexpr (adds) residual.read(residuals[r] + offset, width);
  weight.read(weights + part * parts.weight_step, width);
  const float inverse = inverses[index];
  float dot = 0, d[pack];
  over_held<threads, count>(
      width, [&](int i, int e) { dot += dy(i, e) * (weight(i, e) + shift) * x(i, e); }, [](int) {});
  dot = part_sum<threads, many_parts<threads, count>>(dot);
  const float along = inverse * inverse * inverse * dot / static_cast<float>(width);
  over_held<threads, count>(
      width,
      [&](int i, int e) {
        d[e] = dy(i, e) * (weight(i, e) + shift) * inverse - x(i, e) * along;
        if constexpr (adds) d[e] += residual(i, e);
      },
      [&](int i) { store<pack>(dxs[r] + offset + x.place(i), d); });
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
    const bool packed = packs(parts.width, {&op.x, &op.dy, &op.dx, &op.weight, &op.residual});
    const bool held = with_held<T>(parts, packed, [&](auto threads, auto count) {
      constexpr int n = decltype(threads)::value, m = decltype(count)::value;
      const Launch l = held_launch<n, many_parts<n, m>>(parts);
      const auto kernel = op.residual.given() ? held_backward<n, m, true, T, W> : held_backward<n, m, false, T, W>;
      kernel<<<l.grid, l.block, 0, cuda_stream(stream).handle()>>>(
          rows_of<const T>(op.x), op.weight.as<W>(), op.inverse.as<float>(), rows_of<const T>(op.dy), rows_of<T>(op.dx),
          rows_of<const T>(op.residual), parts, op.zero_centred ? 1.0f : 0.0f);
      launched(name);
    });
    if (held) return;
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
