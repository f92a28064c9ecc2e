// state_scan and its backward: step sizes first, then the chunks (scan_plain.cu, scan_tensor*.cu), then the gradients of
// the step sizes from what those left behind.
#include "weft/device/cuda/kernels/carve.cuh"
#include "weft/device/cuda/kernels/launch.cuh"
#include "weft/device/cuda/kernels/recurrent_sums.cuh"
#include "weft/device/cuda/kernels/scan.cuh"
#include "weft/device/cuda/table.h"

namespace weft::cuda {

namespace {

constexpr int warps = 8;

__device__ float step_of(float raw, float least, float most, bool& inside) {
  const float step = softplus(raw);
  inside = !(step < least || step > most);
  const float low = step < least ? least : step;
  return low > most ? most : low;
}

// A warp for each head of a chunk.
template <class T>
__global__ void steps_kernel(ScanArguments<T> x) {
  const int c = static_cast<int>(blockIdx.x), head = static_cast<int>(blockIdx.y * warps + threadIdx.y);
  if (head >= x.heads) return;
  const int begin = x.cut.begin(c), n = x.cut.size(c), lane = static_cast<int>(threadIdx.x);
  const float bias = x.dt_bias[head];
  const double rate = -exp(static_cast<double>(x.A_log[head]));
  const std::int64_t at = static_cast<std::int64_t>(head) * x.cut.tokens + begin;
  double before = 0;
  for (int t0 = 0; t0 < n; t0 += 32) {
    const int t = t0 + lane;
    double log_decay = 0;
    if (t < n) {
      bool inside;
      const float d = step_of(widen(x.dt[begin + t][head]) + bias, x.dt_least, x.dt_most, inside);
      x.steps.dt[at + t] = d;
      log_decay = static_cast<double>(d) * rate;
    }
    const double sum = before + warp_scan(log_decay);
    if (t < n) x.steps.sum[at + t] = sum;
    before = __shfl_sync(all_lanes, sum, 31);
  }
  const int end_first = x.cut.first(begin, n - 1);
  for (int t = lane; t < n; t += 32) {  // what this lane wrote above
    const double sum = x.steps.sum[at + t];
    const bool continues = x.cut.boundaries == nullptr || x.cut.boundaries[begin + t] < begin;
    const float end = x.cut.first(begin, t) == end_first ? static_cast<float>(exp(before - sum)) : 0.0f;
    x.steps.start[at + t] = continues ? static_cast<float>(exp(sum)) : 0.0f;
    x.steps.end[at + t] = end;
    x.steps.share[at + t] = end * x.steps.dt[at + t];
  }
}

// The gradient of d a at t is the sum of ds from t on; a warp for each head of a chunk, from the last token backwards.
template <class T>
__global__ void finish_kernel(ScanArguments<T> x, ScanGradients<T> g) {
  const int c = static_cast<int>(blockIdx.x), head = static_cast<int>(blockIdx.y * warps + threadIdx.y);
  if (head >= x.heads) return;
  const int begin = x.cut.begin(c), n = x.cut.size(c), lane = static_cast<int>(threadIdx.x);
  const float bias = x.dt_bias[head];
  const double rate = -exp(static_cast<double>(x.A_log[head]));
  const std::int64_t at = static_cast<std::int64_t>(head) * x.cut.tokens + begin;
  const StepParts& p = g.parts;
  double to_last = 0, dD = 0;
  for (int t = lane; t < n; t += 32) {
    if (t + 1 < n) to_last += static_cast<double>(p.reach[at + t]) * static_cast<double>(x.steps.dt[at + t]);
    dD += static_cast<double>(p.diagonal[at + t]);
  }
  to_last = warp_sum(to_last);
  dD = warp_sum(dD);
  const float carry = x.steps.start[at + n - 1];
  if (carry != 0)
    to_last += static_cast<double>(carry) * static_cast<double>(p.dot[static_cast<std::int64_t>(c) * x.heads + head]);
  double behind = 0, da = 0, dbias = 0;
  for (int t0 = (n - 1) / 32 * 32; t0 >= 0; t0 -= 32) {
    const int t = t0 + 31 - lane;  // lane 0 has the last token: the scan runs backwards
    double ds = 0;
    float d = 0, ddt = 0;
    if (t < n) {
      d = x.steps.dt[at + t];
      const float column = p.column[at + t], reach = p.reach[at + t];
      float row = p.row[0][at + t];
      if (g.two_rows && t >= 64) row += p.row[1][at + t];
      ddt = p.self[at + t] + column + reach;
      ds = static_cast<double>(row) + static_cast<double>(p.before[at + t]) -
           static_cast<double>(column) * static_cast<double>(d);
      ds += t + 1 < n ? -static_cast<double>(reach) * static_cast<double>(d) : to_last;
    }
    const double sum = behind + warp_scan(ds);
    behind = __shfl_sync(all_lanes, sum, 31);
    if (t < n) {
      const float raw = widen(x.dt[begin + t][head]) + bias;
      bool inside;
      step_of(raw, x.dt_least, x.dt_most, inside);
      const double slope = inside ? static_cast<double>(1.0f / (1.0f + expf(-raw))) : 0.0;
      const double gradient = (static_cast<double>(ddt) + sum * rate) * slope;
      da += sum * static_cast<double>(d);
      dbias += gradient;
      g.ddt[begin + t][head] = narrow<T>(static_cast<float>(gradient));
    }
  }
  da = warp_sum(da);
  dbias = warp_sum(dbias);
  if (lane != 0) return;
  float* sums = g.sums + static_cast<std::int64_t>(c) * 3 * x.heads + head;
  sums[0] = static_cast<float>(da * rate);
  sums[x.heads] = static_cast<float>(dbias);
  sums[2 * x.heads] = static_cast<float>(dD);
}

void check(const char* name, const StateScan& op, const ChunkCut& cut) {
  const auto fits = [name](bool condition, const char* why) { require(condition, name, why); };
  fits(op.heads >= 1 && op.groups >= 1 && op.heads % op.groups == 0, "heads are not a multiple of groups");
  fits(op.dim >= 1 && op.state >= 1, "dim and state are at least 1");
  const std::int64_t T = op.x.rows();
  fits(columns_of(op.x) == op.heads * op.dim, "x is not [T, heads * dim]");
  fits(op.B.rows() == T && columns_of(op.B) == op.groups * op.state && same_size(op.B, op.C),
       "B or C is not [T, groups * state]");
  fits(op.dt.rows() == T && columns_of(op.dt) == op.heads, "dt is not [T, heads]");
  fits(op.B.dtype == op.x.dtype && op.C.dtype == op.x.dtype && op.dt.dtype == op.x.dtype,
       "x, B, C and dt differ in dtype");
  for (const Tensor* tensor : {&op.A_log, &op.dt_bias, &op.D})
    fits((!tensor->given() && tensor == &op.D) || (tensor->dtype == DType::f32 && tensor->shape.elements() == op.heads),
         "A_log, dt_bias or D is not f32 [heads]");
  fits(op.states.dtype == DType::f32 && op.states.shape.elements() == cut.count() * op.heads * op.dim * op.state,
       "states is not f32 [chunks, heads * dim * state]");
  fits(op.heads <= 65535 && cut.sequences <= 65535, "more than 65535 heads or sequences");
}

template <class T>
ScanArguments<T> arguments(const StateScan& op, const ChunkCut& cut, Carve& carve) {
  ScanArguments<T> x{};
  x.cut = cut;
  x.x = rows_of<const T>(op.x);
  x.B = rows_of<const T>(op.B);
  x.C = rows_of<const T>(op.C);
  x.dt = rows_of<const T>(op.dt);
  x.y = rows_of<T>(op.y);
  x.A_log = op.A_log.as<float>();
  x.dt_bias = op.dt_bias.as<float>();
  x.D = optional<const float>(op.D);
  x.states = op.states.as<float>();
  x.heads = static_cast<int>(op.heads);
  x.groups = static_cast<int>(op.groups);
  x.per_group = static_cast<int>(op.heads / op.groups);
  x.dim = static_cast<int>(op.dim);
  x.state = static_cast<int>(op.state);
  x.dt_least = static_cast<float>(op.dt_least);
  x.dt_most = static_cast<float>(op.dt_most);
  const std::int64_t all = op.heads * cut.tokens;
  x.steps.sum = carve.take<double>(all);
  for (float** at : {&x.steps.dt, &x.steps.start, &x.steps.end, &x.steps.share}) *at = carve.take<float>(all);
  return x;
}

template <class T>
void make_steps(const char* name, CudaStream& stream, const ScanArguments<T>& x) {
  const dim3 grid(static_cast<unsigned>(x.cut.count()), static_cast<unsigned>(divide_up(x.heads, warps)));
  steps_kernel<T><<<grid, dim3(32, warps), 0, stream.handle()>>>(x);
  launched(name);
}

StepParts take_parts(Carve& carve, std::int64_t all, std::int64_t chunk_heads) {
  StepParts p{};
  for (float** at : {&p.row[0], &p.row[1], &p.column, &p.self, &p.diagonal, &p.reach, &p.before})
    *at = carve.take<float>(all);
  p.dot = carve.take<float>(chunk_heads);
  return p;
}

template <class T>
bool on_tensor_cores(const StateScan& op, const StateScanBackward* gradients) {
  return std::is_same_v<T, bf16> && tensor_scan_fits(op, gradients);
}

}  // namespace

void state_scan(Stream& stream, const StateScan& op) {
  constexpr const char* name = "state_scan";
  if (op.x.rows() == 0) return;
  const ChunkCut cut = chunk_cut(name, op.x.rows(), op.length, op.chunk, op.boundaries);
  check(name, op, cut);
  require(same_size(op.x, op.y) && op.x.dtype == op.y.dtype, name, "x and y differ in shape or dtype");
  CudaStream& s = cuda_stream(stream);
  with_storage(name, op.x.dtype, [&](auto type) {
    using T = typename decltype(type)::type;
    const bool tensor = on_tensor_cores<T>(op, nullptr);
    const std::int64_t room = tensor ? 0 : plain_scan_room(cut, cut.count() * op.heads, op.state, false);
    const auto lay_out = [&](Carve carve, ScanArguments<T>& x, float*& work) {
      x = arguments<T>(op, cut, carve);
      work = carve.take<float>(room);
      return carve.bytes();
    };
    ScanArguments<T> x{};
    float* work = nullptr;
    lay_out(Carve(s.scratch(lay_out(Carve(nullptr), x, work))), x, work);
    make_steps(name, s, x);
    if constexpr (std::is_same_v<T, bf16>)
      if (tensor) return tensor_scan(name, s, x);
    plain_scan<T>(name, s, x, work);
  });
}

void state_scan_backward(Stream& stream, const StateScanBackward& op) {
  constexpr const char* name = "state_scan_backward";
  const StateScan& f = op.forward;
  const auto fits = [](bool condition, const char* why) { require(condition, name, why); };
  const auto like = [&](const Tensor& a, const Tensor& b) {
    fits(same_size(a, b) && a.dtype == b.dtype, "a gradient differs from its tensor in shape or dtype");
  };
  like(op.dA_log, f.A_log);
  like(op.ddt_bias, f.dt_bias);
  fits(op.dD.given() == f.D.given(), "dD goes with D");
  if (op.dD.given()) like(op.dD, f.D);
  CudaStream& s = cuda_stream(stream);
  const HeadGradients of_heads{{optional<float>(op.dA_log), optional<float>(op.ddt_bias), optional<float>(op.dD)}, 3};
  if (f.x.rows() == 0) return add_chunk_sums(name, s, nullptr, 0, f.heads, of_heads, op.store);
  const ChunkCut cut = chunk_cut(name, f.x.rows(), f.length, f.chunk, f.boundaries);
  check(name, f, cut);
  like(op.dy, f.x);
  like(op.dx, f.x);
  like(op.dB, f.B);
  like(op.dC, f.C);
  like(op.ddt, f.dt);
  like(op.dstates, f.states);
  fits(op.sums.dtype == DType::f32 && op.sums.rows() == cut.count() && columns_of(op.sums) == 3 * f.heads &&
           op.sums.contiguous(),
       "sums is not f32 [chunks, 3 * heads]");
  with_storage(name, f.x.dtype, [&](auto type) {
    using T = typename decltype(type)::type;
    const bool tensor = on_tensor_cores<T>(f, &op);
    const std::int64_t room = tensor ? 0 : plain_scan_room(cut, cut.count() * f.groups, f.state, true);
    ScanGradients<T> g{rows_of<const T>(op.dy),
                       rows_of<T>(op.dx),
                       rows_of<T>(op.dB),
                       rows_of<T>(op.dC),
                       rows_of<T>(op.ddt),
                       op.dstates.as<float>(),
                       op.sums.as<float>(),
                       {},
                       tensor};
    const auto lay_out = [&](Carve carve, ScanArguments<T>& x, float*& work) {
      x = arguments<T>(f, cut, carve);
      g.parts = take_parts(carve, f.heads * cut.tokens, cut.count() * f.heads);
      work = carve.take<float>(room);
      return carve.bytes();
    };
    ScanArguments<T> x{};
    float* work = nullptr;
    lay_out(Carve(s.scratch(lay_out(Carve(nullptr), x, work))), x, work);
    make_steps(name, s, x);
    if constexpr (std::is_same_v<T, bf16>) {
      if (tensor)
        tensor_scan_backward(name, s, x, g);
      else
        plain_scan_backward<T>(name, s, x, g, work);
    } else {
      plain_scan_backward<T>(name, s, x, g, work);
    }
    const dim3 grid(static_cast<unsigned>(cut.count()), static_cast<unsigned>(divide_up(x.heads, warps)));
    finish_kernel<T><<<grid, dim3(32, warps), 0, s.handle()>>>(x, g);
    launched(name);
  });
  add_chunk_sums(name, s, op.sums.as<float>(), cut.count(), f.heads, of_heads, op.store);
}

}  // namespace weft::cuda
