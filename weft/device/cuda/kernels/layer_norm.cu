// layer_norm, its input gradient and the gradients of weight and bias: a warp or a block per row.
#include "weft/device/argument_checks.h"
#include "weft/device/cuda/kernels/column_sums.cuh"
#include "weft/device/cuda/kernels/row_parts.cuh"
#include "weft/device/cuda/table.h"
#include "weft/device/operations/norms.h"

namespace weft::cuda {

namespace {

template <int threads, int V, class T, class W>
__global__ void layer_forward(Rows<const T> xs, const W* weight, const W* bias, Rows<T> ys, float* means,
                              float* inverses, Parts parts, float eps) {
  const std::int64_t r = part_index();
  if (r >= parts.rows) return;
  const T* x = xs[r];
  const auto width = static_cast<float>(parts.width);
  float sum = 0, square = 0, v[V], w[V], b[V];
  for (std::int64_t j = threadIdx.x * V; j < parts.width; j += threads * V) {
    load<V>(x + j, v);
#pragma unroll
    for (int i = 0; i < V; ++i) sum += v[i];
  }
  const float mean = part_sum<threads>(sum) / width;
  for (std::int64_t j = threadIdx.x * V; j < parts.width; j += threads * V) {
    load<V>(x + j, v);
#pragma unroll
    for (int i = 0; i < V; ++i) square += (v[i] - mean) * (v[i] - mean);
  }
  const float inverse = 1.0f / sqrtf(part_sum<threads>(square) / width + eps);
  if (means != nullptr && threadIdx.x == 0) {
    means[r] = mean;
    inverses[r] = inverse;
  }
  for (std::int64_t j = threadIdx.x * V; j < parts.width; j += threads * V) {
    load<V>(x + j, v);
    load<V>(weight + j, w);
    load<V>(bias + j, b);
#pragma unroll
    for (int i = 0; i < V; ++i) v[i] = (v[i] - mean) * inverse * w[i] + b[i];
    store<V>(ys[r] + j, v);
  }
}

// With u = dy weight and n = (x - mean) inverse:  dx = inverse (u - mean(u) - n mean(u n)).
template <int threads, int V, class T, class W>
__global__ void layer_backward(Rows<const T> xs, const W* weight, const float* means, const float* inverses,
                               Rows<const T> dys, Rows<T> dxs, Parts parts) {
  const std::int64_t r = part_index();
  if (r >= parts.rows) return;
  const T *x = xs[r], *dy = dys[r];
  const float mean = means[r], inverse = inverses[r], width = static_cast<float>(parts.width);
  float level = 0, along = 0, v[V], w[V], d[V];
  for (std::int64_t j = threadIdx.x * V; j < parts.width; j += threads * V) {
    load<V>(x + j, v);
    load<V>(weight + j, w);
    load<V>(dy + j, d);
#pragma unroll
    for (int i = 0; i < V; ++i) {
      level += d[i] * w[i];
      along += d[i] * w[i] * ((v[i] - mean) * inverse);
    }
  }
  level = part_sum<threads>(level) / width;
  along = part_sum<threads>(along) / width;
  for (std::int64_t j = threadIdx.x * V; j < parts.width; j += threads * V) {
    load<V>(x + j, v);
    load<V>(weight + j, w);
    load<V>(dy + j, d);
#pragma unroll
    for (int i = 0; i < V; ++i) d[i] = inverse * (d[i] * w[i] - level - (v[i] - mean) * inverse * along);
    store<V>(dxs[r] + j, d);
  }
}

template <class T>
struct WeightTerm {
  Rows<const T> x, dy;
  const float *mean, *inverse;
  __device__ float operator()(std::int64_t r, std::int64_t c) const {
    return widen(dy[r][c]) * ((widen(x[r][c]) - mean[r]) * inverse[r]);
  }
};
template <class T>
struct BiasTerm {
  Rows<const T> dy;
  __device__ float operator()(std::int64_t r, std::int64_t c) const { return widen(dy[r][c]); }
};

}  // namespace

void layer_norm(Stream& stream, const LayerNorm& op) {
  constexpr const char* name = "layer_norm";
  check_arguments(name, op);
  if (op.x.rows() == 0) return;
  const Parts parts = parts_of(op.x, op.weight, 1);
  with_storage_and(name, op.x.dtype, op.weight.dtype, [&](auto t, auto u) {
    using T = typename decltype(t)::type;
    using W = typename decltype(u)::type;
    with_pack(parts.width, {&op.x, &op.y, &op.weight, &op.bias}, [&](auto v) {
      with_threads(parts, [&](auto threads) {
        constexpr int V = decltype(v)::value, n = decltype(threads)::value;
        const Launch l = launch_of<n>(parts);
        layer_forward<n, V, T, W><<<l.grid, l.block, 0, cuda_stream(stream).handle()>>>(
            rows_of<const T>(op.x), op.weight.as<W>(), op.bias.as<W>(), rows_of<T>(op.y), optional<float>(op.mean),
            optional<float>(op.inverse), parts, static_cast<float>(op.eps));
        launched(name);
      });
    });
  });
}

void layer_norm_backward(Stream& stream, const LayerNormBackward& op) {
  constexpr const char* name = "layer_norm_backward";
  check_arguments(name, op);
  if (op.x.rows() == 0) return;
  const Parts parts = parts_of(op.x, op.weight, 1);
  with_storage_and(name, op.x.dtype, op.weight.dtype, [&](auto t, auto u) {
    using T = typename decltype(t)::type;
    using W = typename decltype(u)::type;
    with_pack(parts.width, {&op.x, &op.dy, &op.dx, &op.weight}, [&](auto v) {
      with_threads(parts, [&](auto threads) {
        constexpr int V = decltype(v)::value, n = decltype(threads)::value;
        const Launch l = launch_of<n>(parts);
        layer_backward<n, V, T, W><<<l.grid, l.block, 0, cuda_stream(stream).handle()>>>(
            rows_of<const T>(op.x), op.weight.as<W>(), op.mean.as<float>(), op.inverse.as<float>(),
            rows_of<const T>(op.dy), rows_of<T>(op.dx), parts);
        launched(name);
      });
    });
  });
}

void layer_norm_weight_gradient(Stream& stream, const LayerNormWeightGradient& op) {
  constexpr const char* name = "layer_norm_weight_gradient";
  check_arguments(name, op);
  const std::int64_t rows = op.x.rows(), columns = op.dweight.shape.elements();
  with_storage_and(name, op.x.dtype, op.dweight.dtype, [&](auto t, auto u) {
    using T = typename decltype(t)::type;
    using Y = typename decltype(u)::type;
    CudaStream& s = cuda_stream(stream);
    const Rows<const T> dy = rows_of<const T>(op.dy);
    sum_columns<Y>(name, s, WeightTerm<T>{rows_of<const T>(op.x), dy, op.mean.as<float>(), op.inverse.as<float>()},
                   rows, columns, nullptr, op.dweight.as<Y>(), op.weight_store);
    sum_columns<Y>(name, s, BiasTerm<T>{dy}, rows, columns, nullptr, op.dbias.as<Y>(), op.bias_store);
  });
}

}  // namespace weft::cuda
