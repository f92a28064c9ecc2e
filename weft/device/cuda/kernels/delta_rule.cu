// delta_rule and its backward: gates first, then the chunks, then the gradients of the gates from what those left behind.
#include "weft/device/cuda/kernels/activation_kinds.cuh"
#include "weft/device/cuda/kernels/carve.cuh"
#include "weft/device/cuda/kernels/delta_tensor.cuh"
#include "weft/device/cuda/kernels/launch.cuh"
#include "weft/device/cuda/kernels/recurrent_sums.cuh"
#include "weft/device/cuda/table.h"

namespace weft::cuda {

namespace {

constexpr int warps = 8;

// A warp for each head of a chunk.
template <class T>
__global__ void gates_kernel(DeltaArguments<T> x) {
  const int c = static_cast<int>(blockIdx.x), head = static_cast<int>(blockIdx.y * warps + threadIdx.y);
  if (head >= x.heads) return;
  const int begin = x.cut.begin(c), n = x.cut.size(c), lane = static_cast<int>(threadIdx.x);
  const float bias = x.dt_bias[head];
  const double rate = -exp(static_cast<double>(x.A_log[head]));
  const std::int64_t at = static_cast<std::int64_t>(head) * x.cut.tokens + begin;
  double before = 0;
  for (int t0 = 0; t0 < n; t0 += 32) {
    const int t = t0 + lane;
    double g = 0;
    if (t < n) {
      g = rate * static_cast<double>(softplus(widen(x.a[begin + t][head]) + bias));
      x.gates.beta[at + t] = sigmoid(widen(x.b[begin + t][head]));
    }
    const double sum = before + warp_scan(g);
    if (t < n) x.gates.sum[at + t] = sum;
    before = __shfl_sync(all_lanes, sum, 31);
  }
  const int end_first = x.cut.first(begin, n - 1);
  for (int t = lane; t < n; t += 32) {  // what this lane wrote above
    const double sum = x.gates.sum[at + t];
    const bool continues = x.cut.boundaries == nullptr || x.cut.boundaries[begin + t] < begin;
    x.gates.start[at + t] = continues ? static_cast<float>(exp(sum)) : 0.0f;
    x.gates.end[at + t] = x.cut.first(begin, t) == end_first ? static_cast<float>(exp(before - sum)) : 0.0f;
  }
}

// The gradient of g_t is the sum of ds from t on; a warp for each head of a chunk, from the last token backwards.
template <class T>
__global__ void finish_kernel(DeltaArguments<T> x, DeltaGradients<T> g) {
  const int c = static_cast<int>(blockIdx.x), head = static_cast<int>(blockIdx.y * warps + threadIdx.y);
  if (head >= x.heads) return;
  const int begin = x.cut.begin(c), n = x.cut.size(c), lane = static_cast<int>(threadIdx.x);
  const float bias = x.dt_bias[head];
  const double rate = -exp(static_cast<double>(x.A_log[head]));
  const std::int64_t at = static_cast<std::int64_t>(head) * x.cut.tokens + begin;
  double behind = 0, dlog = 0, dbias = 0;
  for (int t0 = (n - 1) / 32 * 32; t0 >= 0; t0 -= 32) {
    const int t = t0 + 31 - lane;  // lane 0 has the last token
    const double sum = behind + warp_scan(t < n ? g.ds[at + t] : 0.0);
    behind = __shfl_sync(all_lanes, sum, 31);
    if (t >= n) continue;
    const float raw = widen(x.a[begin + t][head]) + bias, beta = x.gates.beta[at + t];
    const double gradient = sum * rate * static_cast<double>(sigmoid(raw));
    dlog += sum * rate * static_cast<double>(softplus(raw));
    dbias += gradient;
    g.da[begin + t][head] = narrow<T>(static_cast<float>(gradient));
    g.db[begin + t][head] = narrow<T>(g.dbeta[at + t] * beta * (1.0f - beta));
  }
  dlog = warp_sum(dlog);
  dbias = warp_sum(dbias);
  if (lane != 0) return;
  float* sums = g.sums + static_cast<std::int64_t>(c) * 2 * x.heads + head;
  sums[0] = static_cast<float>(dlog);
  sums[x.heads] = static_cast<float>(dbias);
}

void check(const char* name, const DeltaRule& op, const ChunkCut& cut) {
  const auto fits = [name](bool condition, const char* why) { require(condition, name, why); };
  fits(op.heads >= 1 && op.key_heads >= 1 && op.heads % op.key_heads == 0, "heads are not a multiple of key_heads");
  fits(op.dim >= 1 && op.value_dim >= 1, "dim and value_dim are at least 1");
  const std::int64_t T = op.q.rows();
  fits(columns_of(op.q) == op.key_heads * op.dim && same_size(op.q, op.k), "q or k is not [T, key_heads * dim]");
  fits(op.v.rows() == T && columns_of(op.v) == op.heads * op.value_dim, "v is not [T, heads * value_dim]");
  fits(op.a.rows() == T && columns_of(op.a) == op.heads && same_size(op.a, op.b), "a or b is not [T, heads]");
  for (const Tensor* tensor : {&op.k, &op.v, &op.a, &op.b})
    fits(tensor->dtype == op.q.dtype, "q, k, v, a and b differ in dtype");
  for (const Tensor* tensor : {&op.A_log, &op.dt_bias})
    fits(tensor->dtype == DType::f32 && tensor->shape.elements() == op.heads, "A_log or dt_bias is not f32 [heads]");
  fits(op.states.dtype == DType::f32 && op.states.shape.elements() == cut.count() * op.heads * op.dim * op.value_dim,
       "states is not f32 [chunks, heads * dim * value_dim]");
  fits(op.heads <= 65535, "more than 65535 heads");
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

dim3 heads_of_chunks(const ChunkCut& cut, int heads) {
  return dim3(static_cast<unsigned>(cut.count()), static_cast<unsigned>(divide_up(heads, warps)));
}

}  // namespace

void delta_rule(Stream& stream, const DeltaRule& op) {
  constexpr const char* name = "delta_rule";
  if (op.q.rows() == 0) return;
  const ChunkCut cut = chunk_cut(name, op.q.rows(), op.length, op.chunk, op.boundaries);
  check(name, op, cut);
  require(same_size(op.v, op.y) && op.v.dtype == op.y.dtype, name, "v and y differ in shape or dtype");
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
    gates_kernel<T><<<heads_of_chunks(cut, x.heads), dim3(32, warps), 0, s.handle()>>>(x);
    launched(name);
    if constexpr (std::is_same_v<T, bf16>)
      if (tensor) return tensor_delta(name, s, x, work);
    plain_delta<T>(name, s, x, room);
  });
}

void delta_rule_backward(Stream& stream, const DeltaRuleBackward& op) {
  constexpr const char* name = "delta_rule_backward";
  const DeltaRule& f = op.forward;
  const auto like = [&](const Tensor& a, const Tensor& b) {
    require(same_size(a, b) && a.dtype == b.dtype, name, "a gradient differs from its tensor in shape or dtype");
  };
  like(op.dA_log, f.A_log);
  like(op.ddt_bias, f.dt_bias);
  CudaStream& s = cuda_stream(stream);
  const HeadGradients of_heads{{op.dA_log.as<float>(), op.ddt_bias.as<float>(), nullptr}, 2};
  if (f.q.rows() == 0) return add_chunk_sums(name, s, nullptr, 0, f.heads, of_heads, op.store);
  const ChunkCut cut = chunk_cut(name, f.q.rows(), f.length, f.chunk, f.boundaries);
  check(name, f, cut);
  like(op.dy, f.v);
  like(op.dq, f.q);
  like(op.dk, f.k);
  like(op.dv, f.v);
  like(op.da, f.a);
  like(op.db, f.b);
  require(op.sums.dtype == DType::f32 && op.sums.rows() == cut.count() && columns_of(op.sums) == 2 * f.heads &&
              op.sums.contiguous(),
          name, "sums is not f32 [chunks, 2 * heads]");
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
    gates_kernel<T><<<heads_of_chunks(cut, x.heads), dim3(32, warps), 0, s.handle()>>>(x);
    launched(name);
    if constexpr (std::is_same_v<T, bf16>) {
      if (tensor)
        tensor_delta_backward(name, s, x, g, work);
      else
        plain_delta_backward<T>(name, s, x, g, room);
    } else {
      plain_delta_backward<T>(name, s, x, g, room);
    }
    finish_kernel<T><<<heads_of_chunks(cut, x.heads), dim3(32, warps), 0, s.handle()>>>(x, g);
    launched(name);
  });
  add_chunk_sums(name, s, op.sums.as<float>(), cut.count(), f.heads, of_heads, op.store);
}

}  // namespace weft::cuda
