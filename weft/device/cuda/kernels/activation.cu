// activation and its backward: y = act(x) * scale.
#include "weft/device/argument_checks.h"
#include "weft/device/cuda/kernels/activation_kinds.cuh"
#include "weft/device/cuda/kernels/launch.cuh"
#include "weft/device/cuda/kernels/reduce.cuh"
#include "weft/device/cuda/table.h"
#include "weft/device/operations/activation.h"
#include "weft/device/plain_activation.h"

namespace weft::cuda {

namespace {

// A thread takes `rows_at_once` rows of V columns. Blocks go from the last rows to the first, here and in the backward
// pass: what the product before wrote last, and what the one after reads first, is found in the L2 cache.
constexpr int rows_at_once = 2;
template <class Kind, int V, class T>
__global__ void __launch_bounds__(256)
    gated_forward(Kind kind, Rows<const T> xs, Rows<T> ys, const float* scales, std::int64_t rows, std::int64_t width,
                  const std::int32_t* in_use) {
  const std::int64_t j = (blockIdx.y * static_cast<std::int64_t>(blockDim.x) + threadIdx.x) * V;
  const std::int64_t first = (gridDim.x - 1 - blockIdx.x) * static_cast<std::int64_t>(blockDim.y * rows_at_once);
  const std::int64_t end = used_rows(in_use, rows);
  if (j >= width) return;
  Pack<T, V> gates[rows_at_once], linears[rows_at_once];
  float scale[rows_at_once];
#pragma unroll
  for (int i = 0; i < rows_at_once; ++i) {
    const std::int64_t r = first + i * blockDim.y + threadIdx.y;
    if (r >= end) continue;
    gates[i] = *reinterpret_cast<const Pack<T, V>*>(xs[r] + j);
    linears[i] = *reinterpret_cast<const Pack<T, V>*>(xs[r] + width + j);
    scale[i] = scales != nullptr ? scales[r] : 1.0f;
  }
#pragma unroll
  for (int i = 0; i < rows_at_once; ++i) {
    const std::int64_t r = first + i * blockDim.y + threadIdx.y;
    if (r >= end) continue;
    float y[V];
#pragma unroll
    for (int e = 0; e < V; ++e) y[e] = kind.value(widen(gates[i], e), widen(linears[i], e)) * scale[i];
    store<V>(ys[r] + j, y);
  }
}

template <class Kind, int V, class T>
struct PlainForward {
  Rows<const T> x;
  Rows<T> y;
  const float* scales;
  __device__ void operator()(std::int64_t r, std::int64_t unit) const {
    float v[V];
    load<V>(x[r] + unit * V, v);
    const float scale = scales != nullptr ? scales[r] : 1.0f;
#pragma unroll
    for (int i = 0; i < V; ++i) v[i] = Kind::value(v[i]) * scale;
    store<V>(y[r] + unit * V, v);
  }
};

template <class T>
struct Gradient {
  Rows<const T> x, dy;
  Rows<T> dx;
  const float* scales;
  float* dscales;
  std::int64_t rows, width;
  const std::int32_t* in_use;
};

// Of one row; returns this thread's part of the sum of dy * act(x).
template <class Kind, int V, class T>
struct GatedBackward {
  Kind kind;
  __device__ float operator()(const Gradient<T>& p, std::int64_t r, std::int64_t j, float scale) const {
    float g[V], u[V], d[V], sum = 0;
    load<V>(p.x[r] + j, g);
    load<V>(p.x[r] + p.width + j, u);
    load<V>(p.dy[r] + j, d);
#pragma unroll
    for (int i = 0; i < V; ++i) {
      float value, dg, du;
      kind.gradient(g[i], u[i], d[i] * scale, value, dg, du);
      sum += d[i] * value;
      g[i] = dg;
      u[i] = du;
    }
    store<V>(p.dx[r] + j, g);
    store<V>(p.dx[r] + p.width + j, u);
    return sum;
  }
};

template <class Kind, int V, class T>
struct PlainBackward {
  __device__ float operator()(const Gradient<T>& p, std::int64_t r, std::int64_t j, float scale) const {
    float v[V], d[V], sum = 0;
    load<V>(p.x[r] + j, v);
    load<V>(p.dy[r] + j, d);
#pragma unroll
    for (int i = 0; i < V; ++i) {
      float value, slope;
      Kind::gradient(v[i], value, slope);
      sum += d[i] * value;
      v[i] = d[i] * scale * slope;
    }
    store<V>(p.dx[r] + j, v);
    return sum;
  }
};

constexpr int threads = 128;

template <int V, class F, class T>
__global__ void backward_rows(F f, Gradient<T> p) {
  const std::int64_t rows = used_rows(p.in_use, p.rows);
  for (std::int64_t r = blockIdx.x; r < rows; r += gridDim.x) {
    const float scale = p.scales != nullptr ? p.scales[r] : 1.0f;
    float sum = 0;
    for (std::int64_t j = threadIdx.x * V; j < p.width; j += threads * V) sum += f(p, r, j, scale);
    if (p.dscales == nullptr) continue;
    sum = block_sum<threads>(sum);
    if (threadIdx.x == 0) p.dscales[r] = sum;
  }
}

// The same with a warp per row: no thread waits for another warp's sum.
constexpr int warps = 8;
constexpr std::int64_t widest_for_warp = 4096;
template <int V, class F, class T>
__global__ void __launch_bounds__(32 * warps) backward_short_rows(F f, Gradient<T> p) {
  const std::int64_t r = (gridDim.x - 1 - blockIdx.x) * static_cast<std::int64_t>(warps) + threadIdx.x / 32;
  if (r >= used_rows(p.in_use, p.rows)) return;
  const float scale = p.scales != nullptr ? p.scales[r] : 1.0f;
  float sum = 0;
#pragma unroll 2
  for (std::int64_t j = threadIdx.x % 32 * V; j < p.width; j += 32 * V) sum += f(p, r, j, scale);
  sum = warp_sum(sum);
  if (threadIdx.x % 32 == 0) p.dscales[r] = sum;
}

}  // namespace

void activation(Stream& stream, const Activation& op) {
  constexpr const char* name = "activation";
  check_arguments(name, op);
  const std::int64_t rows = op.x.rows(), width = columns_of(op.y);
  if (rows == 0) return;
  const std::int32_t* in_use = in_use_of(name, op.rows_in_use);
  with_storage(name, op.x.dtype, [&](auto type) {
    using T = typename decltype(type)::type;
    with_pack(width, {&op.x, &op.y}, [&](auto v) {
      constexpr int V = decltype(v)::value;
      const Rows<const T> x = rows_of<const T>(op.x);
      const Rows<T> y = rows_of<T>(op.y);
      const float* scales = optional<const float>(op.scale);
      if (op.spec.gated())
        return with_gated_kind<T>(op.spec, [&](auto kind) {
          unsigned wide = 32;
          while (wide < 256 && wide < width / V) wide *= 2;
          const dim3 block(wide, 256 / wide);
          const dim3 grid(static_cast<unsigned>(divide_up(rows, block.y * rows_at_once)),
                          static_cast<unsigned>(divide_up(width, static_cast<std::int64_t>(wide) * V)));
          gated_forward<decltype(kind), V, T>
              <<<grid, block, 0, cuda_stream(stream).handle()>>>(kind, x, y, scales, rows, width, in_use);
          launched(name);
        });
      with_plain_activation<SquaredRelu, GeluTanh, GeluErf>(op.spec.kind, [&](auto kind) {
        launch_over_rows(name, cuda_stream(stream), PlainForward<decltype(kind), V, T>{x, y, scales}, rows, width / V,
                         in_use);
      });
    });
  });
}

void activation_backward(Stream& stream, const ActivationBackward& op) {
  constexpr const char* name = "activation_backward";
  check_arguments(name, op);
  const std::int64_t rows = op.x.rows(), width = columns_of(op.dy);
  if (rows == 0) return;
  with_storage(name, op.x.dtype, [&](auto type) {
    using T = typename decltype(type)::type;
    with_pack(width, {&op.x, &op.dy, &op.dx}, [&](auto v) {
      constexpr int V = decltype(v)::value;
      const Gradient<T> p{rows_of<const T>(op.x),
                          rows_of<const T>(op.dy),
                          rows_of<T>(op.dx),
                          optional<const float>(op.scale),
                          optional<float>(op.dscale),
                          rows,
                          width,
                          in_use_of(name, op.rows_in_use)};
      const auto blocks = static_cast<unsigned>(std::min<std::int64_t>(rows, 1 << 20));
      const bool by_warps = p.dscales != nullptr && width <= widest_for_warp;
      const auto run = [&](const auto& f) {
        if (by_warps)
          backward_short_rows<V>
              <<<static_cast<unsigned>(divide_up(rows, warps)), 32 * warps, 0, cuda_stream(stream).handle()>>>(f, p);
        else
          backward_rows<V><<<blocks, threads, 0, cuda_stream(stream).handle()>>>(f, p);
        launched(name);
      };
      if (op.spec.gated())
        return with_gated_kind<T>(op.spec, [&](auto kind) { run(GatedBackward<decltype(kind), V, T>{kind}); });
      with_plain_activation<SquaredRelu, GeluTanh, GeluErf>(
          op.spec.kind, [&](auto kind) { run(PlainBackward<decltype(kind), V, T>{}); });
    });
  });
}

}  // namespace weft::cuda
