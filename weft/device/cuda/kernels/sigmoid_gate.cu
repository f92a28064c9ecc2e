// y = x sigmoid(gate), one gate for each part of a row, and its gradients.
#include "weft/device/argument_checks.h"
#include "weft/device/cuda/kernels/activation_kinds.cuh"
#include "weft/device/cuda/kernels/row_parts.cuh"
#include "weft/device/cuda/table.h"
#include "weft/device/operations/activation.h"

namespace weft::cuda {

namespace {

// One gate per element.
template <int V, class T>
struct ElementGate {
  Rows<const T> x, gate;
  Rows<T> y;
  __device__ void operator()(std::int64_t r, std::int64_t unit) const {
    float v[V], g[V];
    load<V>(x[r] + unit * V, v);
    load<V>(gate[r] + unit * V, g);
#pragma unroll
    for (int i = 0; i < V; ++i) v[i] *= sigmoid(g[i]);
    store<V>(y[r] + unit * V, v);
  }
};
template <int V, class T>
struct ElementGateBackward {
  Rows<const T> x, gate, dy;
  Rows<T> dx, dgate;
  __device__ void operator()(std::int64_t r, std::int64_t unit) const {
    float v[V], g[V], d[V];
    load<V>(x[r] + unit * V, v);
    load<V>(gate[r] + unit * V, g);
    load<V>(dy[r] + unit * V, d);
#pragma unroll
    for (int i = 0; i < V; ++i) {
      const float s = sigmoid(g[i]);
      g[i] = d[i] * v[i] * s * (1.0f - s);
      d[i] *= s;
    }
    store<V>(dgate[r] + unit * V, g);
    store<V>(dx[r] + unit * V, d);
  }
};

// One gate for V elements or more.
template <int V, class T>
struct PartGate {
  Rows<const T> x, gate;
  Rows<T> y;
  std::int64_t width;
  __device__ void operator()(std::int64_t r, std::int64_t unit) const {
    float v[V];
    const float factor = sigmoid(widen(gate[r][unit * V / width]));
    load<V>(x[r] + unit * V, v);
#pragma unroll
    for (int i = 0; i < V; ++i) v[i] *= factor;
    store<V>(y[r] + unit * V, v);
  }
};

template <int threads, int V, class T>
__global__ void part_backward(Rows<const T> xs, Rows<const T> gates, Rows<const T> dys, Rows<T> dxs, Rows<T> dgates,
                              Parts parts) {
  const std::int64_t index = part_index();
  if (index >= parts.rows * parts.count) return;
  const std::int64_t r = index / parts.count, part = index % parts.count, offset = part * parts.width;
  const T *x = xs[r] + offset, *dy = dys[r] + offset;
  const float s = sigmoid(widen(gates[r][part]));
  float dot = 0, v[V], d[V];
  for (std::int64_t j = threadIdx.x * V; j < parts.width; j += threads * V) {
    load<V>(x + j, v);
    load<V>(dy + j, d);
#pragma unroll
    for (int i = 0; i < V; ++i) {
      dot += d[i] * v[i];
      d[i] *= s;
    }
    store<V>(dxs[r] + offset + j, d);
  }
  dot = part_sum<threads>(dot);
  if (threadIdx.x == 0) dgates[r][part] = narrow<T>(dot * s * (1.0f - s));
}

}  // namespace

void sigmoid_gate(Stream& stream, const SigmoidGate& op) {
  constexpr const char* name = "sigmoid_gate";
  check_arguments(name, op);
  const std::int64_t width = gated_width(op.x, op.gate), columns = columns_of(op.x);
  with_storage(name, op.x.dtype, [&](auto type) {
    using T = typename decltype(type)::type;
    const Rows<const T> x = rows_of<const T>(op.x), gate = rows_of<const T>(op.gate);
    const Rows<T> y = rows_of<T>(op.y);
    if (width == 1)
      return with_pack(columns, {&op.x, &op.gate, &op.y}, [&](auto v) {
        constexpr int V = decltype(v)::value;
        launch_over_rows(name, cuda_stream(stream), ElementGate<V, T>{x, gate, y}, op.x.rows(), columns / V);
      });
    with_pack(width, {&op.x, &op.y}, [&](auto v) {
      constexpr int V = decltype(v)::value;
      launch_over_rows(name, cuda_stream(stream), PartGate<V, T>{x, gate, y, width}, op.x.rows(), columns / V);
    });
  });
}

void sigmoid_gate_backward(Stream& stream, const SigmoidGateBackward& op) {
  constexpr const char* name = "sigmoid_gate_backward";
  check_arguments(name, op);
  const std::int64_t width = gated_width(op.x, op.gate), columns = columns_of(op.x);
  if (op.x.rows() == 0) return;
  const Parts parts{op.x.rows(), columns / width, width, 0};
  with_storage(name, op.x.dtype, [&](auto type) {
    using T = typename decltype(type)::type;
    const Rows<const T> x = rows_of<const T>(op.x), gate = rows_of<const T>(op.gate), dy = rows_of<const T>(op.dy);
    const Rows<T> dx = rows_of<T>(op.dx), dgate = rows_of<T>(op.dgate);
    if (width == 1)
      return with_pack(columns, {&op.x, &op.gate, &op.dy, &op.dx, &op.dgate}, [&](auto v) {
        constexpr int V = decltype(v)::value;
        launch_over_rows(name, cuda_stream(stream), ElementGateBackward<V, T>{x, gate, dy, dx, dgate}, op.x.rows(),
                         columns / V);
      });
    with_pack(width, {&op.x, &op.dy, &op.dx}, [&](auto v) {
      with_threads(parts, [&](auto threads) {
        constexpr int V = decltype(v)::value, n = decltype(threads)::value;
        const Launch l = launch_of<n>(parts);
        part_backward<n, V, T><<<l.grid, l.block, 0, cuda_stream(stream).handle()>>>(x, gate, dy, dx, dgate, parts);
        launched(name);
      });
    });
  });
}

}  // namespace weft::cuda
