// sum_of_squares, clip_factor, adamw. Lists of tensors travel as parameters of the kernel: one launch for all of them.
#include "weft/device/argument_checks.h"
#include "weft/device/cuda/kernels/adamw_resident.cuh"
#include "weft/device/cuda/kernels/launch.cuh"
#include "weft/device/cuda/kernels/reduce.cuh"
#include "weft/device/cuda/table.h"
#include "weft/device/operations/optimizer.h"

namespace weft::cuda {

namespace {

constexpr int threads = 256;

constexpr std::int64_t squares_per_block = 65536;

struct Numbers {
  const void* data;
  std::int64_t count;
  int first;
  bool single;  // f32, otherwise bf16
};

template <int V, class T>
__device__ double sum_squares(const T* x, std::int64_t count) {
  double sum = 0;
  float v[V];
  for (std::int64_t i = threadIdx.x * V; i + V <= count; i += threads * V) {
    load<V>(x + i, v);
#pragma unroll
    for (int j = 0; j < V; ++j) sum += static_cast<double>(v[j]) * static_cast<double>(v[j]);
  }
  const std::int64_t rest = count / V * V + threadIdx.x;
  if (rest < count) sum += static_cast<double>(widen(x[rest])) * static_cast<double>(widen(x[rest]));
  return sum;
}

template <class T>
__device__ double sum_squares_of(const T* x, std::int64_t count) {
  return reinterpret_cast<std::uintptr_t>(x) % (4 * sizeof(T)) == 0 ? sum_squares<4>(x, count)
                                                                    : sum_squares<1>(x, count);
}

template <int capacity>
__global__ void squares_kernel(const __grid_constant__ List<Numbers, capacity> list, double* parts) {
  const int block = static_cast<int>(blockIdx.x);
  const Numbers& item = item_of(list, block);
  const std::int64_t begin = (block - item.first) * squares_per_block;
  const std::int64_t count = item.count - begin < squares_per_block ? item.count - begin : squares_per_block;
  double sum = item.single ? sum_squares_of(static_cast<const float*>(item.data) + begin, count)
                           : sum_squares_of(static_cast<const bf16*>(item.data) + begin, count);
  sum = block_sum<threads>(sum);
  if (threadIdx.x == 0) parts[block] = sum;
}

__global__ void add_parts(const double* parts, std::int64_t count, double* out, bool add) {
  double sum = 0;
  for (std::int64_t i = threadIdx.x; i < count; i += 1024) sum += parts[i];
  sum = block_sum<1024>(sum);
  if (threadIdx.x == 0) *out = add ? *out + sum : sum;
}

__global__ void clip_kernel(const double* sums, std::int64_t count, const void* loss, bool single, double* values,
                            double limit) {
  double sum = 0;
  for (std::int64_t i = 0; i < count; ++i) sum += sums[i];
  const double norm = sqrt(sum);
  const double l = loss == nullptr ? 0 : single ? *static_cast<const float*>(loss) : *static_cast<const double*>(loss);
  values[StepValues::gradient_norm] = norm;
  values[StepValues::clip_factor] = limit > 0 ? fmin(1.0, limit / (norm + 1e-6)) : 1.0;
  values[StepValues::finite] = isfinite(norm) && isfinite(l) ? 1.0 : 0.0;
}

constexpr std::int64_t updates_per_block = 8192;

// `parts` of updates_per_block elements, dealt out to the blocks in turn.
template <int capacity>
__global__ void __launch_bounds__(threads)
    adamw_kernel(const __grid_constant__ List<SlabItem, capacity> list, int parts, const double* values, double beta1,
                 double beta2, double eps) {
  if (values[StepValues::finite] == 0) return;
  const StepConstants constants = StepConstants::of(values, beta1, beta2, eps);
  for (int part = static_cast<int>(blockIdx.x); part < parts; part += static_cast<int>(gridDim.x)) {
    const SlabItem& s = item_of(list, part);
    const StepConstants k = constants.with_decay(s.decays);
    const std::int64_t begin = (part - s.first) * updates_per_block;
    const std::int64_t end = begin + updates_per_block < s.count ? begin + updates_per_block : s.count;
    const int thread = static_cast<int>(threadIdx.x);
    if (s.packs && end % 4 == 0)
      update_part<4>(k, s, begin, end, thread, threads);
    else
      update_part<1>(k, s, begin, end, thread, threads);
  }
}

// How updates run on a stream: in parts of how many elements, and how their kernel is started.
struct UpdateLaunch {
  std::int64_t part;
  bool resident;
  unsigned* taken;  // of resident blocks; asked for in any case, since streams reserve their memory before they share

  static UpdateLaunch on(CudaStream& stream) {
    const bool resident = stream.shares_processors() && stream.hopper_code();
    return {resident ? Resident::elements : updates_per_block, resident, stream.scratch_of<unsigned>(1)};
  }
  template <int capacity>
  void operator()(CudaStream& stream, const List<SlabItem, capacity>& list, unsigned parts, const AdamW& op) const {
    const double* values = op.step_values.as<double>();
    if (resident) {
      launch_resident(stream, list, static_cast<int>(parts), taken, op);
    } else {
      // Four blocks are what a processor holds.
      const unsigned blocks =
          stream.shares_processors() ? std::min(parts, 4 * static_cast<unsigned>(stream.processors())) : parts;
      adamw_kernel<<<blocks, threads, 0, stream.handle()>>>(list, static_cast<int>(parts), values, op.beta1, op.beta2,
                                                            op.eps);
    }
    launched("adamw");
  }
};

}  // namespace

void sum_of_squares(Stream& stream, const SumOfSquares& op) {
  constexpr const char* name = "sum_of_squares";
  check_arguments(name, op);
  std::int64_t blocks = 0;
  for (const Tensor& x : op.x) {
    require(x.dtype == DType::f32 || x.dtype == DType::bf16, name, "needs f32 or bf16 on a GPU");
    blocks += divide_up(x.shape.elements(), squares_per_block);
  }
  CudaStream& s = cuda_stream(stream);
  double* parts = s.scratch_of<double>(std::max<std::int64_t>(blocks, 1));
  std::int64_t done = 0;
  const auto flush = [&](const auto& list, unsigned count) {
    squares_kernel<<<count, threads, 0, s.handle()>>>(list, parts + done);
    launched(name);
    done += count;
  };
  with_list<Numbers, 64, 1024>(op.x.size(), flush, [&](auto& builder) {
    for (const Tensor& x : op.x)
      builder.add({x.data, x.shape.elements(), 0, x.dtype == DType::f32},
                  divide_up(x.shape.elements(), squares_per_block));
  });
  add_parts<<<1, 1024, 0, s.handle()>>>(parts, blocks, op.out.as<double>(), op.store == Store::add);
  launched(name);
}

void clip_factor(Stream& stream, const ClipFactor& op) {
  constexpr const char* name = "clip_factor";
  check_arguments(name, op);
  clip_kernel<<<1, 1, 0, cuda_stream(stream).handle()>>>(
      optional<const double>(op.sum), op.sum.given() ? op.sum.shape.elements() : 0, optional<const void>(op.loss),
      op.loss.dtype == DType::f32, op.step_values.as<double>(), op.limit);
  launched(name);
}

void adamw(Stream& stream, const AdamW& op) {
  check_arguments("adamw", op);
  for (const AdamSlab& slab : op.slabs)
    require(slab.weight.dtype == DType::f32 || slab.weight.dtype == DType::bf16, "adamw", "needs f32 or bf16 on a GPU");
  CudaStream& s = cuda_stream(stream);
  const UpdateLaunch launch = UpdateLaunch::on(s);
  const auto flush = [&](const auto& list, unsigned parts) { launch(s, list, parts, op); };
  with_list<SlabItem, 32, 512>(op.slabs.size(), flush, [&](auto& builder) {
    for (const AdamSlab& slab : op.slabs) {
      const std::int64_t count = slab.weight.shape.elements();
      bool aligned = true;
      for (const Tensor* tensor : {&slab.weight, &slab.remainder, &slab.m, &slab.v, &slab.gradient})
        aligned = aligned && reinterpret_cast<std::uintptr_t>(tensor->data) % 16 == 0;
      builder.add({slab.weight.data, slab.remainder.as<std::int16_t>(), slab.m.as<float>(), slab.v.as<float>(),
                   slab.gradient.data, count, 0, slab.gradient.dtype == DType::f32, slab.decay, aligned},
                  divide_up(count, launch.part));
    }
  });
}

}  // namespace weft::cuda
