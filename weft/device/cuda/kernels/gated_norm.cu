// gated_norm, its gradients, and l2_norm: a warp or a block for each part of a row.
#include "weft/device/argument_checks.h"
#include "weft/device/cuda/kernels/activation_kinds.cuh"
#include "weft/device/cuda/kernels/norm_gradients.cuh"
#include "weft/device/cuda/kernels/quick.cuh"
#include "weft/device/cuda/table.h"
#include "weft/device/operations/recurrent.h"

namespace weft::cuda {

namespace {

template <int threads, int V, class T, class W>
__global__ void gated_forward(Rows<const T> xs, Rows<const T> zs, const W* weights, Rows<T> ys, float* inverses,
                              Parts parts, float eps, bool gate_first, Rows<const float> squares, float whole) {
  const std::int64_t index = part_index();
  if (index >= parts.rows * parts.count) return;
  const std::int64_t r = index / parts.count, part = index % parts.count, offset = part * parts.width;
  const T *x = xs[r] + offset, *z = zs[r] + offset;
  const W* weight = weights + part * parts.weight_step;
  T* y = ys[r] + offset;
  float sum = 0, v[V], g[V], w[V];
  // Where ranks divide the parts, the sum is given.
  for (std::int64_t j = threadIdx.x * V; !squares.data && j < parts.width; j += threads * V) {
    load<V>(x + j, v);
    if (gate_first) {
      load<V>(z + j, g);
#pragma unroll
      for (int i = 0; i < V; ++i) v[i] *= g[i] * sigmoid(g[i]);
    }
#pragma unroll
    for (int i = 0; i < V; ++i) sum += v[i] * v[i];
  }
  sum = squares.data ? squares[r][part] : part_sum<threads>(sum);
  const float inverse = 1.0f / sqrtf(sum / whole + eps);
  if (threadIdx.x == 0) inverses[index] = inverse;
  for (std::int64_t j = threadIdx.x * V; j < parts.width; j += threads * V) {
    load<V>(x + j, v);
    load<V>(z + j, g);
    load<V>(weight + j, w);
#pragma unroll
    for (int i = 0; i < V; ++i) v[i] = v[i] * (g[i] * sigmoid(g[i])) * inverse * w[i];
    store<V>(y + j, v);
  }
}

// The same with everything read once, before the first sum.
template <int threads, int count, class T, class W>
__global__ void __launch_bounds__(threads* few_parts<threads>)
    held_gated_forward(Rows<const T> xs, Rows<const T> zs, const W* weights, Rows<T> ys, float* inverses, Parts parts,
                       float eps, bool gate_first) {
  const std::int64_t index = part_index();
  if (index >= parts.rows * parts.count) return;
  const std::int64_t r = index / parts.count, part = index % parts.count, offset = part * parts.width;
  const int width = static_cast<int>(parts.width);
  Held<T, threads, count> x, z;
  Held<W, threads, count> weight;
  x.read(xs[r] + offset, width);
  z.read(zs[r] + offset, width);
  weight.read(weights + part * parts.weight_step, width);
  const auto gated = [&](int i, int e) { return x(i, e) * (z(i, e) * quick_sigmoid(z(i, e))); };
  float sum = 0, v[pack];
  over_held<threads, count>(
      width,
      [&](int i, int e) {
        const float u = gate_first ? gated(i, e) : x(i, e);
        sum += u * u;
      },
      [](int) {});
  sum = part_sum<threads>(sum);
  const float inverse = 1.0f / sqrtf(sum / static_cast<float>(width) + eps);
  if (threadIdx.x == 0) inverses[index] = inverse;
  over_held<threads, count>(
      width, [&](int i, int e) { v[e] = gated(i, e) * inverse * weight(i, e); },
      [&](int i) { store<pack>(ys[r] + offset + x.place(i), v); });
}

// gate_first: with u = x silu(z), d = dy weight:  du = inverse d - u inverse^3 mean(d u);  dx = du silu(z),
// dz = du x silu'(z). Otherwise with d = dy weight silu(z) the same for x, and dz = dy weight x inverse silu'(z).
template <class T, class W>
struct GatedGradients {
  using Element = T;
  using Weight = W;
  static constexpr int inputs = 3, outputs = 2;
  Rows<const T> in[inputs];  // x, z, dy
  Rows<T> out[outputs];      // dx, dz
  const W* weights;
  const float* inverses;
  bool gate_first;
  __device__ static float share(float z) { return sizeof(T) == 2 ? quick_sigmoid(z) : sigmoid(z); }
  __device__ float dot(const float (&v)[inputs], float w) const { return v[2] * w * v[0] * (v[1] * share(v[1])); }
  __device__ void gradients(const float (&v)[inputs], float w, float inverse, float along, float (&to)[2]) const {
    const float x = v[0], s = share(v[1]), gate = v[1] * s, slope = s + gate * (1.0f - s), d = v[2] * w;
    if (gate_first) {
      const float du = inverse * d - x * gate * along;
      to[0] = du * gate;
      to[1] = du * x * slope;
    } else {
      to[0] = inverse * d * gate - x * along;
      to[1] = d * x * inverse * slope;
    }
  }
  __device__ float weight_term(const float (&v)[inputs], float inverse) const {
    return v[2] * v[0] * (v[1] * share(v[1])) * inverse;
  }
};

// The sums over a rank's piece of each part: of squares, or with dy those of the gradients.
template <int threads, class T, class W>
__global__ void gated_sums(GatedGradients<T, W> f, Rows<float> sums, Parts parts) {
  const std::int64_t index = part_index();
  if (index >= parts.rows * parts.count) return;
  const std::int64_t r = index / parts.count, part = index % parts.count, offset = part * parts.width;
  const W* weights = f.weights + part * parts.weight_step;
  float sum = 0;
  for (std::int64_t j = threadIdx.x; j < parts.width; j += threads) {
    const float x = widen(f.in[0][r][offset + j]), z = widen(f.in[1][r][offset + j]);
    if (f.in[2].data) {
      const float v[3] = {x, z, widen(f.in[2][r][offset + j])};
      sum += f.dot(v, widen(weights[j]));
    } else {
      const float u = f.gate_first ? x * (z * GatedGradients<T, W>::share(z)) : x;
      sum += u * u;
    }
  }
  sum = part_sum<threads>(sum);
  if (threadIdx.x == 0) sums[r][part] = sum;
}

// dx and dz where the sum over a whole part is given.
template <int threads, class T, class W>
__global__ void divided_gradients(GatedGradients<T, W> f, Rows<const float> products, Parts parts, float whole) {
  const std::int64_t index = part_index();
  if (index >= parts.rows * parts.count) return;
  const std::int64_t r = index / parts.count, part = index % parts.count, offset = part * parts.width;
  const W* weights = f.weights + part * parts.weight_step;
  const float inverse = f.inverses[index], along = inverse * inverse * inverse * products[r][part] / whole;
  for (std::int64_t j = threadIdx.x; j < parts.width; j += threads) {
    const float v[3] = {widen(f.in[0][r][offset + j]), widen(f.in[1][r][offset + j]), widen(f.in[2][r][offset + j])};
    float out[2];
    f.gradients(v, widen(weights[j]), inverse, along, out);
    f.out[0][r][offset + j] = narrow<T>(out[0]);
    f.out[1][r][offset + j] = narrow<T>(out[1]);
  }
}

template <int threads, int V, class T>
__global__ void l2_forward(Rows<const T> xs, Rows<T> ys, Parts parts, float eps, float scale) {
  const std::int64_t index = part_index();
  if (index >= parts.rows * parts.count) return;
  const std::int64_t r = index / parts.count, offset = index % parts.count * parts.width;
  const T* x = xs[r] + offset;
  float sum = 0, v[V];
  for (std::int64_t j = threadIdx.x * V; j < parts.width; j += threads * V) {
    load<V>(x + j, v);
#pragma unroll
    for (int i = 0; i < V; ++i) sum += v[i] * v[i];
  }
  sum = part_sum<threads>(sum);
  const float factor = scale / sqrtf(sum + eps);
  for (std::int64_t j = threadIdx.x * V; j < parts.width; j += threads * V) {
    load<V>(x + j, v);
#pragma unroll
    for (int i = 0; i < V; ++i) v[i] *= factor;
    store<V>(ys[r] + offset + j, v);
  }
}

// dx = scale inverse (dy - x inverse^2 (x . dy))
template <int threads, int V, class T>
__global__ void l2_backward(Rows<const T> xs, Rows<const T> dys, Rows<T> dxs, Parts parts, float eps, float scale) {
  const std::int64_t index = part_index();
  if (index >= parts.rows * parts.count) return;
  const std::int64_t r = index / parts.count, offset = index % parts.count * parts.width;
  const T *x = xs[r] + offset, *dy = dys[r] + offset;
  float sum = 0, dot = 0, v[V], d[V];
  for (std::int64_t j = threadIdx.x * V; j < parts.width; j += threads * V) {
    load<V>(x + j, v);
    load<V>(dy + j, d);
#pragma unroll
    for (int i = 0; i < V; ++i) {
      sum += v[i] * v[i];
      dot += v[i] * d[i];
    }
  }
  sum = part_sum<threads>(sum);
  dot = part_sum<threads>(dot);
  const float inverse = 1.0f / sqrtf(sum + eps), factor = inverse * scale, along = inverse * inverse * dot;
  for (std::int64_t j = threadIdx.x * V; j < parts.width; j += threads * V) {
    load<V>(x + j, v);
    load<V>(dy + j, d);
#pragma unroll
    for (int i = 0; i < V; ++i) d[i] = factor * (d[i] - v[i] * along);
    store<V>(dxs[r] + offset + j, d);
  }
}

Parts l2_parts(const L2Norm& op) { return {op.x.rows(), op.groups, columns_of(op.x) / op.groups, 0}; }

}  // namespace

void gated_norm(Stream& stream, const GatedNorm& op) {
  constexpr const char* name = "gated_norm";
  check_arguments(name, op);
  const Parts parts = parts_of(op.x, op.weight, op.groups);
  if (parts.rows == 0) return;
  with_storage_and(name, op.x.dtype, op.weight.dtype, [&](auto t, auto u) {
    using T = typename decltype(t)::type;
    using W = typename decltype(u)::type;
    const bool held =
        !op.squares.given() &&
        with_held<T>(parts, packs(parts.width, {&op.x, &op.z, &op.y, &op.weight}), [&](auto threads, auto count) {
          constexpr int n = decltype(threads)::value;
          const Launch l = held_launch<n, few_parts<n>>(parts);
          held_gated_forward<n, decltype(count)::value, T, W><<<l.grid, l.block, 0, cuda_stream(stream).handle()>>>(
              rows_of<const T>(op.x), rows_of<const T>(op.z), op.weight.as<W>(), rows_of<T>(op.y),
              op.inverse.as<float>(), parts, static_cast<float>(op.eps), op.gate_first);
          launched(name);
        });
    if (held) return;
    with_pack(parts.width, {&op.x, &op.z, &op.y, &op.weight}, [&](auto v) {
      with_threads(parts, [&](auto threads) {
        constexpr int V = decltype(v)::value, n = decltype(threads)::value;
        const Launch l = launch_of<n>(parts);
        gated_forward<n, V, T, W><<<l.grid, l.block, 0, cuda_stream(stream).handle()>>>(
            rows_of<const T>(op.x), rows_of<const T>(op.z), op.weight.as<W>(), rows_of<T>(op.y), op.inverse.as<float>(),
            parts, static_cast<float>(op.eps), op.gate_first,
            op.squares.given() ? rows_of<const float>(op.squares) : Rows<const float>{},
            static_cast<float>(op.squares.given() ? op.whole : parts.width));
        launched(name);
      });
    });
  });
}

void gated_norm_backward(Stream& stream, const GatedNormBackward& op) {
  constexpr const char* name = "gated_norm_backward";
  check_arguments(name, op);
  const GatedNorm& f = op.forward;
  const Parts parts = parts_of(f.x, f.weight, f.groups);
  const bool packed = packs(parts.width, {&f.x, &f.z, &op.dy, &op.dx, &op.dz, &f.weight});
  with_storage_and(name, f.x.dtype, f.weight.dtype, [&](auto t, auto u) {
    using T = typename decltype(t)::type;
    using W = typename decltype(u)::type;
    const GatedGradients<T, W> gradients{{rows_of<const T>(f.x), rows_of<const T>(f.z), rows_of<const T>(op.dy)},
                                         {rows_of<T>(op.dx), rows_of<T>(op.dz)},
                                         f.weight.as<W>(),
                                         f.inverse.as<float>(),
                                         f.gate_first};
    if (op.products.given()) {
      with_storage_and(name, f.x.dtype, op.dweight.dtype, [&](auto, auto g) {
        const bool shared = parts.weight_step == 0;
        const WeightTerms<GatedGradients<T, W>> terms{gradients, static_cast<unsigned>(parts.count),
                                                      static_cast<unsigned>(parts.width), shared};
        sum_columns(name, cuda_stream(stream), terms, parts.rows * (shared ? parts.count : 1),
                    op.dweight.shape.elements(), nullptr, op.dweight.as<typename decltype(g)::type>(), op.store);
      });
      if (parts.rows == 0) return;
      with_threads(parts, [&](auto threads) {
        constexpr int n = decltype(threads)::value;
        const Launch l = launch_of<n>(parts);
        divided_gradients<n><<<l.grid, l.block, 0, cuda_stream(stream).handle()>>>(
            gradients, rows_of<const float>(op.products), parts, static_cast<float>(f.whole));
        launched(name);
      });
      return;
    }
    with_storage_and(name, f.x.dtype, op.dweight.dtype, [&](auto, auto g) {
      queue_gradients<typename decltype(g)::type>(name, cuda_stream(stream), gradients, parts, packed, op.dweight,
                                                  op.store);
    });
  });
}

void gated_norm_sums(Stream& stream, const GatedNormSums& op) {
  constexpr const char* name = "gated_norm_sums";
  check_arguments(name, op);
  const GatedNorm& f = op.forward;
  const Parts parts = parts_of(f.x, f.weight, f.groups);
  if (parts.rows == 0) return;
  with_storage_and(name, f.x.dtype, f.weight.dtype, [&](auto t, auto u) {
    using T = typename decltype(t)::type;
    using W = typename decltype(u)::type;
    const GatedGradients<T, W> terms{
        {rows_of<const T>(f.x), rows_of<const T>(f.z), op.dy.given() ? rows_of<const T>(op.dy) : Rows<const T>{}},
        {},
        f.weight.as<W>(),
        nullptr,
        f.gate_first};
    with_threads(parts, [&](auto threads) {
      constexpr int n = decltype(threads)::value;
      const Launch l = launch_of<n>(parts);
      gated_sums<n><<<l.grid, l.block, 0, cuda_stream(stream).handle()>>>(terms, rows_of<float>(op.sums), parts);
      launched(name);
    });
  });
}

void l2_norm(Stream& stream, const L2Norm& op) {
  constexpr const char* name = "l2_norm";
  check_arguments(name, op);
  const Parts parts = l2_parts(op);
  if (parts.rows == 0) return;
  with_storage(name, op.x.dtype, [&](auto t) {
    using T = typename decltype(t)::type;
    with_pack(parts.width, {&op.x, &op.y}, [&](auto v) {
      with_threads(parts, [&](auto threads) {
        constexpr int V = decltype(v)::value, n = decltype(threads)::value;
        const Launch l = launch_of<n>(parts);
        l2_forward<n, V, T><<<l.grid, l.block, 0, cuda_stream(stream).handle()>>>(
            rows_of<const T>(op.x), rows_of<T>(op.y), parts, static_cast<float>(op.eps), static_cast<float>(op.scale));
        launched(name);
      });
    });
  });
}

void l2_norm_backward(Stream& stream, const L2NormBackward& op) {
  constexpr const char* name = "l2_norm_backward";
  check_arguments(name, op);
  const L2Norm& f = op.forward;
  const Parts parts = l2_parts(f);
  if (parts.rows == 0) return;
  with_storage(name, f.x.dtype, [&](auto t) {
    using T = typename decltype(t)::type;
    with_pack(parts.width, {&f.x, &op.dy, &op.dx}, [&](auto v) {
      with_threads(parts, [&](auto threads) {
        constexpr int V = decltype(v)::value, n = decltype(threads)::value;
        const Launch l = launch_of<n>(parts);
        l2_backward<n, V, T><<<l.grid, l.block, 0, cuda_stream(stream).handle()>>>(
            rows_of<const T>(f.x), rows_of<const T>(op.dy), rows_of<T>(op.dx), parts, static_cast<float>(f.eps),
            static_cast<float>(f.scale));
        launched(name);
      });
    });
  });
}

}  // namespace weft::cuda
