// gated_norm, its gradients, and l2_norm: a warp or a block for each part of a row.
#include "weft/device/cuda/kernels/activation_kinds.cuh"
#include "weft/device/cuda/kernels/column_sums.cuh"
#include "weft/device/cuda/kernels/quick.cuh"
#include "weft/device/cuda/kernels/row_parts.cuh"
#include "weft/device/cuda/table.h"
#include "weft/device/operations/recurrent.h"

namespace weft::cuda {

namespace {

template <int threads, int V, class T, class W>
__global__ void gated_forward(Rows<const T> xs, Rows<const T> zs, const W* weights, Rows<T> ys, float* inverses,
                              Parts parts, float eps, bool gate_first) {
  const std::int64_t index = part_index();
  if (index >= parts.rows * parts.count) return;
  const std::int64_t r = index / parts.count, part = index % parts.count, offset = part * parts.width;
  const T *x = xs[r] + offset, *z = zs[r] + offset;
  const W* weight = weights + part * parts.weight_step;
  T* y = ys[r] + offset;
  float sum = 0, v[V], g[V], w[V];
  for (std::int64_t j = threadIdx.x * V; j < parts.width; j += threads * V) {
    load<V>(x + j, v);
    if (gate_first) {
      load<V>(z + j, g);
#pragma unroll
      for (int i = 0; i < V; ++i) v[i] *= g[i] * sigmoid(g[i]);
    }
#pragma unroll
    for (int i = 0; i < V; ++i) sum += v[i] * v[i];
  }
  sum = part_sum<threads>(sum);
  const float inverse = 1.0f / sqrtf(sum / static_cast<float>(parts.width) + eps);
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

// gate_first: with u = x silu(z), v = dy weight:  du = inverse v - u inverse^3 mean(v u);  dx = du silu(z),
// dz = du x silu'(z). Otherwise with v = dy weight silu(z) the same for x, and dz = dy weight x inverse silu'(z).
template <int threads, int V, class T, class W>
__global__ void gated_backward(Rows<const T> xs, Rows<const T> zs, const W* weights, const float* inverses,
                               Rows<const T> dys, Rows<T> dxs, Rows<T> dzs, Parts parts, bool gate_first) {
  const std::int64_t index = part_index();
  if (index >= parts.rows * parts.count) return;
  const std::int64_t r = index / parts.count, part = index % parts.count, offset = part * parts.width;
  const T *x = xs[r] + offset, *z = zs[r] + offset, *dy = dys[r] + offset;
  const W* weight = weights + part * parts.weight_step;
  const float inverse = inverses[index];
  float dot = 0, a[V], b[V], w[V], d[V];
  for (std::int64_t j = threadIdx.x * V; j < parts.width; j += threads * V) {
    load<V>(x + j, a);
    load<V>(z + j, b);
    load<V>(weight + j, w);
    load<V>(dy + j, d);
#pragma unroll
    for (int i = 0; i < V; ++i) dot += d[i] * w[i] * a[i] * (b[i] * sigmoid(b[i]));
  }
  dot = part_sum<threads>(dot);
  const float along = inverse * inverse * inverse * dot / static_cast<float>(parts.width);
  for (std::int64_t j = threadIdx.x * V; j < parts.width; j += threads * V) {
    load<V>(x + j, a);
    load<V>(z + j, b);
    load<V>(weight + j, w);
    load<V>(dy + j, d);
#pragma unroll
    for (int i = 0; i < V; ++i) {
      const float s = sigmoid(b[i]), gate = b[i] * s, slope = s + gate * (1.0f - s), v = d[i] * w[i];
      if (gate_first) {
        const float du = inverse * v - a[i] * gate * along;
        b[i] = du * a[i] * slope;
        a[i] = du * gate;
      } else {
        b[i] = v * a[i] * inverse * slope;
        a[i] = inverse * v * gate - a[i] * along;
      }
    }
    store<V>(dxs[r] + offset + j, a);
    store<V>(dzs[r] + offset + j, b);
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

template <int threads, int count, class T, class W>
__global__ void __launch_bounds__(threads* few_parts<threads>)
    held_gated_backward(Rows<const T> xs, Rows<const T> zs, const W* weights, const float* inverses, Rows<const T> dys,
                        Rows<T> dxs, Rows<T> dzs, Parts parts, bool gate_first) {
  const std::int64_t index = part_index();
  if (index >= parts.rows * parts.count) return;
  const std::int64_t r = index / parts.count, part = index % parts.count, offset = part * parts.width;
  const int width = static_cast<int>(parts.width);
  Held<T, threads, count> x, z, dy;
  Held<W, threads, count> weight;
  x.read(xs[r] + offset, width);
  z.read(zs[r] + offset, width);
  dy.read(dys[r] + offset, width);
  weight.read(weights + part * parts.weight_step, width);
  const float inverse = inverses[index];
  float dot = 0, dx[pack], dz[pack];
  over_held<threads, count>(
      width, [&](int i, int e) { dot += dy(i, e) * weight(i, e) * x(i, e) * (z(i, e) * quick_sigmoid(z(i, e))); },
      [](int) {});
  dot = part_sum<threads>(dot);
  const float along = inverse * inverse * inverse * dot / static_cast<float>(width);
  over_held<threads, count>(
      width,
      [&](int i, int e) {
        const float a = x(i, e), s = quick_sigmoid(z(i, e)), gate = z(i, e) * s, slope = s + gate * (1.0f - s);
        const float v = dy(i, e) * weight(i, e);
        if (gate_first) {
          const float du = inverse * v - a * gate * along;
          dz[e] = du * a * slope;
          dx[e] = du * gate;
        } else {
          dz[e] = v * a * inverse * slope;
          dx[e] = inverse * v * gate - a * along;
        }
      },
      [&](int i) {
        store<pack>(dxs[r] + offset + x.place(i), dx);
        store<pack>(dzs[r] + offset + x.place(i), dz);
      });
}

// Of the weight's gradient. Where the parts share their weights, a part is a row of the sum.
template <class T>
struct GatedTerm {
  Rows<const T> x, z, dy;
  const float* inverse;
  unsigned parts, width;
  bool shared;
  __device__ float operator()(std::int64_t r, std::int64_t c) const {
    const std::int64_t row = shared ? static_cast<unsigned>(r) / parts : r;
    const std::int64_t part = shared ? r - row * parts : static_cast<unsigned>(c) / width;
    const std::int64_t at = shared ? part * width + c : c;
    const float gate = widen(z[row][at]);
    return widen(dy[row][at]) * widen(x[row][at]) * (gate * sigmoid(gate)) * inverse[row * parts + part];
  }
  // Eight columns, of one part; for weights that are not shared.
  static constexpr int at_once = 2;
  struct Words {
    Pack<T, pack> x, z, dy;
    float scale;
  };
  __device__ Words read(std::int64_t r, std::int64_t c) const {
    return {read_once<pack>(x[r] + c), read_once<pack>(z[r] + c), read_once<pack>(dy[r] + c),
            inverse[r * parts + static_cast<unsigned>(c) / width]};
  }
  __device__ static void add(const Words& words, float (&sum)[pack]) {
#pragma unroll
    for (int i = 0; i < pack; ++i) {
      const float gate = widen(words.z, i);
      sum[i] += widen(words.dy, i) * widen(words.x, i) * (gate * quick_sigmoid(gate)) * words.scale;
    }
  }
};

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

Parts gated_parts(const char* name, const GatedNorm& op, const Tensor& weight) {
  require(same_size(op.x, op.z) && op.x.dtype == op.z.dtype, name, "x and z differ in shape or dtype");
  const Parts parts = parts_of(name, op.x, weight, op.groups);
  if (parts.rows > 0) check_inverse(name, op.inverse, op.x, op.groups);
  return parts;
}

Parts l2_parts(const char* name, const L2Norm& op) {
  const std::int64_t columns = columns_of(op.x);
  require(op.groups >= 1 && columns % op.groups == 0, name, "a row does not divide into its parts");
  return {op.x.rows(), op.groups, columns / op.groups, 0};
}

}  // namespace

void gated_norm(Stream& stream, const GatedNorm& op) {
  constexpr const char* name = "gated_norm";
  require(same_size(op.x, op.y) && op.x.dtype == op.y.dtype, name, "x and y differ in shape or dtype");
  const Parts parts = gated_parts(name, op, op.weight);
  if (parts.rows == 0) return;
  with_storage_and(name, op.x.dtype, op.weight.dtype, [&](auto t, auto u) {
    using T = typename decltype(t)::type;
    using W = typename decltype(u)::type;
    const bool held =
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
            parts, static_cast<float>(op.eps), op.gate_first);
        launched(name);
      });
    });
  });
}

void gated_norm_backward(Stream& stream, const GatedNormBackward& op) {
  constexpr const char* name = "gated_norm_backward";
  const GatedNorm& f = op.forward;
  for (const Tensor* tensor : {&op.dy, &op.dx, &op.dz})
    require(same_size(f.x, *tensor) && f.x.dtype == tensor->dtype, name, "x, dy, dx and dz differ in shape or dtype");
  const Parts parts = gated_parts(name, f, f.weight);
  if (parts.rows == 0) return;
  with_storage_and(name, f.x.dtype, f.weight.dtype, [&](auto t, auto u) {
    using T = typename decltype(t)::type;
    using W = typename decltype(u)::type;
    const bool held = with_held<T>(
        parts, packs(parts.width, {&f.x, &f.z, &op.dy, &op.dx, &op.dz, &f.weight}), [&](auto threads, auto count) {
          constexpr int n = decltype(threads)::value;
          const Launch l = held_launch<n, few_parts<n>>(parts);
          held_gated_backward<n, decltype(count)::value, T, W><<<l.grid, l.block, 0, cuda_stream(stream).handle()>>>(
              rows_of<const T>(f.x), rows_of<const T>(f.z), f.weight.as<W>(), f.inverse.as<float>(),
              rows_of<const T>(op.dy), rows_of<T>(op.dx), rows_of<T>(op.dz), parts, f.gate_first);
          launched(name);
        });
    if (held) return;
    with_pack(parts.width, {&f.x, &f.z, &op.dy, &op.dx, &op.dz, &f.weight}, [&](auto v) {
      with_threads(parts, [&](auto threads) {
        constexpr int V = decltype(v)::value, n = decltype(threads)::value;
        const Launch l = launch_of<n>(parts);
        gated_backward<n, V, T, W><<<l.grid, l.block, 0, cuda_stream(stream).handle()>>>(
            rows_of<const T>(f.x), rows_of<const T>(f.z), f.weight.as<W>(), f.inverse.as<float>(),
            rows_of<const T>(op.dy), rows_of<T>(op.dx), rows_of<T>(op.dz), parts, f.gate_first);
        launched(name);
      });
    });
  });
}

void gated_norm_weight_gradient(Stream& stream, const GatedNormWeightGradient& op) {
  constexpr const char* name = "gated_norm_weight_gradient";
  const GatedNorm& f = op.forward;
  require(same_size(f.x, op.dy) && f.x.dtype == op.dy.dtype, name, "x and dy differ in shape or dtype");
  const Parts parts = gated_parts(name, f, op.dweight);
  require(parts.rows * parts.count < std::int64_t{1} << 32, name, "more than 4 billion parts");
  const bool shared = parts.weight_step == 0;
  with_storage_and(name, op.dy.dtype, op.dweight.dtype, [&](auto t, auto u) {
    using T = typename decltype(t)::type;
    using Y = typename decltype(u)::type;
    const GatedTerm<T> term{rows_of<const T>(f.x),
                            rows_of<const T>(f.z),
                            rows_of<const T>(op.dy),
                            f.inverse.as<float>(),
                            static_cast<unsigned>(f.groups),
                            static_cast<unsigned>(std::max<std::int64_t>(parts.width, 1)),
                            shared};
    if (!shared && packs(parts.width, {&f.x, &f.z, &op.dy}))
      return sum_packed_columns<Y>(name, cuda_stream(stream), term, parts.rows, op.dweight.shape.elements(),
                                   op.dweight.as<Y>(), op.store);
    sum_columns<Y>(name, cuda_stream(stream), term, parts.rows * (shared ? parts.count : 1),
                   op.dweight.shape.elements(), nullptr, op.dweight.as<Y>(), op.store);
  });
}

void l2_norm(Stream& stream, const L2Norm& op) {
  constexpr const char* name = "l2_norm";
  require(same_size(op.x, op.y) && op.x.dtype == op.y.dtype, name, "x and y differ in shape or dtype");
  const Parts parts = l2_parts(name, op);
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
  const L2Norm& f = op.forward;
  require(same_size(f.x, op.dy) && same_size(f.x, op.dx) && f.x.dtype == op.dy.dtype && f.x.dtype == op.dx.dtype, name,
          "x, dy and dx differ in shape or dtype");
  const Parts parts = l2_parts(name, f);
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
