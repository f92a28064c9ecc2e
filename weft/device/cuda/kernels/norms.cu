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

// A warp a part, whose elements it reads once and all at once: up to `count` packs of 8 a lane.
template <class T, int count>
struct Held {
  Pack<T, pack> packs[count];
  __device__ void read(const T* from, int width) {
#pragma unroll
    for (int i = 0; i < count; ++i) {
      const int j = (i * 32 + static_cast<int>(threadIdx.x)) * pack;
      if (j < width) packs[i] = *reinterpret_cast<const Pack<T, pack>*>(from + j);
    }
  }
};

template <int count, class T, class W>
__global__ void __launch_bounds__(256)
    held_forward(Rows<const T> xs, const W* weights, Rows<T> ys, float* inverses, Parts parts, float eps, float shift) {
  const std::int64_t index = part_index<32>();
  if (index >= parts.rows * parts.count) return;
  const std::int64_t r = index / parts.count, part = index % parts.count;
  const int width = static_cast<int>(parts.width);
  const W* weight = weights + part * parts.weight_step;
  T* y = ys[r] + part * parts.width;
  Held<T, count> x;
  x.read(xs[r] + part * parts.width, width);
  float sum = 0;
#pragma unroll
  for (int i = 0; i < count; ++i)
    if ((i * 32 + static_cast<int>(threadIdx.x)) * pack < width) {
#pragma unroll
      for (int e = 0; e < pack; ++e) sum += widen(x.packs[i].at[e]) * widen(x.packs[i].at[e]);
    }
  sum = warp_sum(sum);
  const float inverse = 1.0f / sqrtf(sum / static_cast<float>(width) + eps);
  if (inverses != nullptr && threadIdx.x == 0) inverses[index] = inverse;
#pragma unroll
  for (int i = 0; i < count; ++i) {
    const int j = (i * 32 + static_cast<int>(threadIdx.x)) * pack;
    if (j >= width) continue;
    float w[pack], v[pack];
    load<pack>(weight + j, w);
#pragma unroll
    for (int e = 0; e < pack; ++e) v[e] = widen(x.packs[i].at[e]) * inverse * (w[e] + shift);
    store<pack>(y + j, v);
  }
}

template <int count, class T, class W>
__global__ void __launch_bounds__(256)
    held_backward(Rows<const T> xs, const W* weights, const float* inverses, Rows<const T> dys, Rows<T> dxs,
                  Rows<const T> residuals, Parts parts, float shift) {
  const std::int64_t index = part_index<32>();
  if (index >= parts.rows * parts.count) return;
  const std::int64_t r = index / parts.count, part = index % parts.count, offset = part * parts.width;
  const int width = static_cast<int>(parts.width);
  const W* weight = weights + part * parts.weight_step;
  Held<T, count> x, dy;
  x.read(xs[r] + offset, width);
  dy.read(dys[r] + offset, width);
  const float inverse = inverses[index];
  float dot = 0, w[pack];
#pragma unroll
  for (int i = 0; i < count; ++i) {
    const int j = (i * 32 + static_cast<int>(threadIdx.x)) * pack;
    if (j >= width) continue;
    load<pack>(weight + j, w);
#pragma unroll
    for (int e = 0; e < pack; ++e) dot += widen(dy.packs[i].at[e]) * (w[e] + shift) * widen(x.packs[i].at[e]);
  }
  dot = warp_sum(dot);
  const float along = inverse * inverse * inverse * dot / static_cast<float>(width);
#pragma unroll
  for (int i = 0; i < count; ++i) {
    const int j = (i * 32 + static_cast<int>(threadIdx.x)) * pack;
    if (j >= width) continue;
    float d[pack], v[pack] = {};
    load<pack>(weight + j, w);
    if (residuals.data != nullptr) load<pack>(residuals[r] + offset + j, v);
#pragma unroll
    for (int e = 0; e < pack; ++e)
      d[e] = widen(dy.packs[i].at[e]) * (w[e] + shift) * inverse - widen(x.packs[i].at[e]) * along + v[e];
    store<pack>(dxs[r] + offset + j, d);
  }
}

// Whether a part fits into a warp's registers; body(packs a lane).
template <class T, class Body>
bool with_held(const Parts& parts, bool packed, const Body& body) {
  if constexpr (std::is_same_v<T, bf16>) {
    if (!packed || parts.width <= 256 || parts.width > 2048) return false;
    if (parts.width <= 1024)
      body(std::integral_constant<int, 4>{});
    else
      body(std::integral_constant<int, 8>{});
    return true;
  }
  return false;
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
    const bool held = with_held<T>(parts, packs(parts.width, {&op.x, &op.y, &op.weight}), [&](auto count) {
      const Launch l = launch_of<32>(parts);
      held_forward<decltype(count)::value, T, W><<<l.grid, l.block, 0, cuda_stream(stream).handle()>>>(
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
    const bool held = with_held<T>(parts, packed, [&](auto count) {
      const Launch l = launch_of<32>(parts);
      held_backward<decltype(count)::value, T, W><<<l.grid, l.block, 0, cuda_stream(stream).handle()>>>(
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
