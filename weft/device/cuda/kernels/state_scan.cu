// state_scan and its backward: step sizes first, then the chunks (scan_plain.cu, scan_tensor*.cu), then the gradients of
// the step sizes, from sums that the chunks leave in scratch memory.
#include "weft/device/argument_checks.h"
#include "weft/device/cuda/kernels/carve.cuh"
#include "weft/device/cuda/kernels/launch.cuh"
#include "weft/device/cuda/kernels/recurrent_sums.cuh"
#include "weft/device/cuda/kernels/scan.cuh"
#include "weft/device/cuda/table.h"

namespace weft::cuda {

namespace {

__device__ float step_of(float raw, float least, float most, bool& inside) {
  const float step = softplus(raw);
  inside = !(step < least || step > most);
  const float low = step < least ? least : step;
  return low > most ? most : low;
}

template <class T>
__global__ void steps_kernel(ScanArguments<T> x) {
  const int head = head_of_warp();
  if (head >= x.heads) return;
  const HeadOfChunk h(x, head);
  const auto step = [&](int t) {
    bool inside;
    const float d = step_of(widen(x.dt[h.begin + t][head]) + h.bias, x.dt_least, x.dt_most, inside);
    x.steps.dt[h.at + t] = d;
    return static_cast<double>(d) * h.rate;
  };
  make_decays(x.cut, h, x.steps.sum, step, [&](int t, float start, float end) {
    x.steps.start[h.at + t] = start;
    x.steps.end[h.at + t] = end;
    x.steps.share[h.at + t] = end * x.steps.dt[h.at + t];
  });
}

// The gradient of d a at t is the sum of ds from t on; a warp for each head of a chunk, from the last token backwards.
template <class T>
__global__ void finish_kernel(ScanArguments<T> x, ScanGradients<T> g) {
  const int head = head_of_warp();
  if (head >= x.heads) return;
  const HeadOfChunk h(x, head);
  const StepParts& p = g.parts;
  double to_last = 0, dD = 0;
  for (int t = h.lane; t < h.n; t += 32) {
    if (t + 1 < h.n) to_last += static_cast<double>(p.reach[h.at + t]) * static_cast<double>(x.steps.dt[h.at + t]);
    dD += static_cast<double>(p.diagonal[h.at + t]);
  }
  to_last = warp_sum(to_last);
  dD = warp_sum(dD);
  const float carry = x.steps.start[h.at + h.n - 1];
  if (carry != 0)
    to_last += static_cast<double>(carry) * static_cast<double>(p.dot[static_cast<std::int64_t>(h.c) * x.heads + head]);
  double after = 0, da = 0, dbias = 0;
  for (int t0 = (h.n - 1) / 32 * 32; t0 >= 0; t0 -= 32) {
    const int t = t0 + 31 - h.lane;  // lane 0 has the last token: the scan runs backwards
    double ds = 0;
    float d = 0, ddt = 0;
    if (t < h.n) {
      d = x.steps.dt[h.at + t];
      const float column = p.column[h.at + t], reach = p.reach[h.at + t];
      float row = p.row[0][h.at + t];
      if (g.two_rows && t >= 64) row += p.row[1][h.at + t];
      ddt = p.self[h.at + t] + column + reach;
      ds = static_cast<double>(row) + static_cast<double>(p.before[h.at + t]) -
           static_cast<double>(column) * static_cast<double>(d);
      ds += t + 1 < h.n ? -static_cast<double>(reach) * static_cast<double>(d) : to_last;
    }
    const double sum = after + warp_scan(ds);
    after = __shfl_sync(all_lanes, sum, 31);
    if (t < h.n) {
      const float raw = widen(x.dt[h.begin + t][head]) + h.bias;
      bool inside;
      step_of(raw, x.dt_least, x.dt_most, inside);
      const double slope = inside ? static_cast<double>(1.0f / (1.0f + expf(-raw))) : 0.0;
      const double gradient = (static_cast<double>(ddt) + sum * h.rate) * slope;
      da += sum * static_cast<double>(d);
      dbias += gradient;
      g.ddt[h.begin + t][head] = narrow<T>(static_cast<float>(gradient));
    }
  }
  da = warp_sum(da);
  dbias = warp_sum(dbias);
  if (h.lane != 0) return;
  float* sums = g.sums + static_cast<std::int64_t>(h.c) * 3 * x.heads + head;
  sums[0] = static_cast<float>(da * h.rate);
  sums[x.heads] = static_cast<float>(dbias);
  sums[2 * x.heads] = static_cast<float>(dD);
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
  steps_kernel<T><<<heads_of_chunks(x.cut, x.heads), dim3(32, warps_of_heads), 0, stream.handle()>>>(x);
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
  check_arguments(name, op);
  const ChunkCut cut = chunk_cut(name, op.x.rows(), op.length, op.chunk, op.boundaries, op.heads);
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
  check_arguments(name, op);
  CudaStream& s = cuda_stream(stream);
  const HeadGradients of_heads{{optional<float>(op.dA_log), optional<float>(op.ddt_bias), optional<float>(op.dD)}, 3};
  if (f.x.rows() == 0) return add_chunk_sums(name, s, nullptr, 0, f.heads, of_heads, op.store);
  const ChunkCut cut = chunk_cut(name, f.x.rows(), f.length, f.chunk, f.boundaries, f.heads);
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
    finish_kernel<T><<<heads_of_chunks(cut, x.heads), dim3(32, warps_of_heads), 0, s.handle()>>>(x, g);
    launched(name);
  });
  add_chunk_sums(name, s, op.sums.as<float>(), cut.count(), f.heads, of_heads, op.store);
}

}  // namespace weft::cuda
