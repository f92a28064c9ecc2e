// delta_rule and its backward: gates first, then the chunks, then the gradients of the gates, from sums
// that the chunks leave in scratch memory.
#include "weft/device/argument_checks.h"
#include "weft/device/cuda/kernels/activation_kinds.cuh"
#include "weft/device/cuda/kernels/carve.cuh"
#include "weft/device/cuda/kernels/delta_tensor.cuh"
#include "weft/device/cuda/kernels/launch.cuh"
#include "weft/device/cuda/kernels/recurrent_sums.cuh"
#include "weft/device/cuda/table.h"

namespace weft::cuda {

namespace {

template <class T>
__global__ void gates_kernel(DeltaArguments<T> x) {
  const int head = head_of_warp();
  if (head >= x.heads) return;
  const HeadOfChunk h(x, head);
  const auto gate = [&](int t) {
    const double g = h.rate * static_cast<double>(softplus(widen(x.a[h.begin + t][head]) + h.bias));
    x.gates.beta[h.at + t] = sigmoid(widen(x.b[h.begin + t][head]));
    return g;
  };
  make_decays(x.cut, h, x.gates.sum, gate, [&](int t, float start, float end) {
    x.gates.start[h.at + t] = start;
    x.gates.end[h.at + t] = end;
  });
}

// The gradient of g_t is the sum of ds from t on; a warp for each head of a chunk, from the last token backwards.
template <class T>
__global__ void finish_kernel(DeltaArguments<T> x, DeltaGradients<T> g) {
  const int head = head_of_warp();
  if (head >= x.heads) return;
  const HeadOfChunk h(x, head);
  double after = 0, dlog = 0, dbias = 0;
  for (int t0 = (h.n - 1) / 32 * 32; t0 >= 0; t0 -= 32) {
    const int t = t0 + 31 - h.lane;  // lane 0 has the last token
    const double sum = after + warp_scan(t < h.n ? g.ds[h.at + t] : 0.0);
    after = __shfl_sync(all_lanes, sum, 31);
    if (t >= h.n) continue;
    const float raw = widen(x.a[h.begin + t][head]) + h.bias, beta = x.gates.beta[h.at + t];
    const double gradient = sum * h.rate * static_cast<double>(sigmoid(raw));
    dlog += sum * h.rate * static_cast<double>(softplus(raw));
    dbias += gradient;
    g.da[h.begin + t][head] = narrow<T>(static_cast<float>(gradient));
    g.db[h.begin + t][head] = narrow<T>(g.dbeta[h.at + t] * beta * (1.0f - beta));
  }
  dlog = warp_sum(dlog);
  dbias = warp_sum(dbias);
  if (h.lane != 0) return;
  float* sums = g.sums + static_cast<std::int64_t>(h.c) * 2 * x.heads + head;
  sums[0] = static_cast<float>(dlog);
  sums[x.heads] = static_cast<float>(dbias);
}

template <class T>
DeltaArguments<T> arguments(const DeltaRule& op, const ChunkCut& cut, Carve& carve) {
  DeltaArguments<T> x{};
  x.cut = cut;
  x.q = rows_of<const T>(op.q);
  x.k = rows_of<const T>(op.k);
  x.v = rows_of<const T>(op.v);
  x.a = rows_of<const T>(op.a);
  x.b = rows_of<const T>(op.b);
  x.y = rows_of<T>(op.y);
  x.A_log = op.A_log.as<float>();
  x.dt_bias = op.dt_bias.as<float>();
  x.states = op.states.as<float>();
  x.heads = static_cast<int>(op.heads);
  x.key_heads = static_cast<int>(op.key_heads);
  x.per_key = static_cast<int>(op.heads / op.key_heads);
  x.dim = static_cast<int>(op.dim);
  x.value_dim = static_cast<int>(op.value_dim);
  const std::int64_t all = op.heads * cut.tokens;
  x.gates.sum = carve.take<double>(all);
  for (float** at : {&x.gates.beta, &x.gates.start, &x.gates.end}) *at = carve.take<float>(all);
  return x;
}

// For T = bf16 where the sizes fit; otherwise nothing.
template <class T>
bool on_tensor_cores(const DeltaRule& op, const DeltaRuleBackward* gradients) {
  return std::is_same_v<T, bf16> && tensor_delta_fits(op, gradients);
}

DeltaWork take_work(Carve& carve, const DeltaRule& op, const ChunkCut& cut, bool backward) {
  const std::int64_t rows = op.heads * cut.tokens * delta_dim, squares = cut.count() * op.heads;
  DeltaWork work{carve.take<bf16>(rows), carve.take<bf16>(rows), nullptr, nullptr, nullptr};
  if (!backward) return work;
  work.T = carve.take<bf16>(squares * delta_rows * delta_rows);
  work.dU = carve.take<bf16>(rows);
  work.dstate = carve.take<bf16>(squares * delta_dim * delta_dim);
  return work;
}

}  // namespace

void delta_rule(Stream& stream, const DeltaRule& op) {
  constexpr const char* name = "delta_rule";
  if (op.q.rows() == 0) return;
  check_arguments(name, op);
  const ChunkCut cut = chunk_cut(name, op.q.rows(), op.length, op.chunk, op.boundaries, op.heads);
  CudaStream& s = cuda_stream(stream);
  with_storage(name, op.q.dtype, [&](auto type) {
    using T = typename decltype(type)::type;
    const bool tensor = on_tensor_cores<T>(op, nullptr);
    DeltaArguments<T> x{};
    DeltaWork work{};
    float* room = nullptr;
    const auto lay_out = [&](Carve carve) {
      x = arguments<T>(op, cut, carve);
      if (tensor)
        work = take_work(carve, op, cut, false);
      else
        room = carve.take<float>(plain_delta_room(cut, op, false));
      return carve.bytes();
    };
    lay_out(Carve(s.scratch(lay_out(Carve(nullptr)))));
    gates_kernel<T><<<heads_of_chunks(cut, x.heads), dim3(32, warps_of_heads), 0, s.handle()>>>(x);
    launched(name);
    if constexpr (std::is_same_v<T, bf16>)
      if (tensor) return tensor_delta(name, s, x, work);
    plain_delta<T>(name, s, x, room);
  });
}

void delta_rule_backward(Stream& stream, const DeltaRuleBackward& op) {
  constexpr const char* name = "delta_rule_backward";
  const DeltaRule& f = op.forward;
  check_arguments(name, op);
  CudaStream& s = cuda_stream(stream);
  const HeadGradients of_heads{{op.dA_log.as<float>(), op.ddt_bias.as<float>(), nullptr}, 2};
  if (f.q.rows() == 0) return add_chunk_sums(name, s, nullptr, 0, f.heads, of_heads, op.store);
  const ChunkCut cut = chunk_cut(name, f.q.rows(), f.length, f.chunk, f.boundaries, f.heads);
  with_storage(name, f.q.dtype, [&](auto type) {
    using T = typename decltype(type)::type;
    DeltaGradients<T> g{rows_of<const T>(op.dy), rows_of<T>(op.dq), rows_of<T>(op.dk),
                        rows_of<T>(op.dv),       rows_of<T>(op.da), rows_of<T>(op.db),
                        op.sums.as<float>(),     nullptr,           nullptr};
    const bool tensor = on_tensor_cores<T>(f, &op);
    DeltaArguments<T> x{};
    DeltaWork work{};
    float* room = nullptr;
    const auto lay_out = [&](Carve carve) {
      x = arguments<T>(f, cut, carve);
      g.ds = carve.take<double>(f.heads * cut.tokens);
      g.dbeta = carve.take<float>(f.heads * cut.tokens);
      if (tensor)
        work = take_work(carve, f, cut, true);
      else
        room = carve.take<float>(plain_delta_room(cut, f, true));
      return carve.bytes();
    };
    lay_out(Carve(s.scratch(lay_out(Carve(nullptr)))));
    gates_kernel<T><<<heads_of_chunks(cut, x.heads), dim3(32, warps_of_heads), 0, s.handle()>>>(x);
    launched(name);
    if constexpr (std::is_same_v<T, bf16>) {
      if (tensor)
        tensor_delta_backward(name, s, x, g, work);
      else
        plain_delta_backward<T>(name, s, x, g, room);
    } else {
      plain_delta_backward<T>(name, s, x, g, room);
    }
    finish_kernel<T><<<heads_of_chunks(cut, x.heads), dim3(32, warps_of_heads), 0, s.handle()>>>(x, g);
    launched(name);
  });
  add_chunk_sums(name, s, op.sums.as<float>(), cut.count(), f.heads, of_heads, op.store);
}

}  // namespace weft::cuda
