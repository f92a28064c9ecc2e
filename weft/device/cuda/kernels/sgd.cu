// sgd: one launch for all slabs, as of AdamW (optimizer.cu).
#include "weft/device/argument_checks.h"
#include "weft/device/cuda/kernels/item_list.cuh"
#include "weft/device/cuda/kernels/launch.cuh"
#include "weft/device/cuda/kernels/trained_weights.cuh"
#include "weft/device/cuda/table.h"
#include "weft/device/operations/optimizer.h"

namespace weft::cuda {

namespace {

constexpr int threads = 256;
constexpr std::int64_t updates_per_block = 8192;

struct SgdItem {
  void* weight;             // f32, or
  std::int16_t* remainder;  // bf16, with this
  float* momentum;          // or null
  const void* gradient;
  std::int64_t count;
  int first;
  bool single_gradient, decays;
  bool packs;  // everything is aligned to 16 bytes
};

struct SgdConstants {
  float clip, momentum, rate, decay;

  __device__ static SgdConstants of(const double* values, double momentum, bool decays) {
    return {static_cast<float>(values[StepValues::clip_factor]), static_cast<float>(momentum),
            static_cast<float>(values[StepValues::learning_rate]),
            decays ? static_cast<float>(values[StepValues::weight_decay]) : 0.0f};
  }
};

// Elements [begin, end) of a slab, V at once, rounded as written whatever V is. momentum: null where `keeps` is false.
template <int V, bool keeps, class Values, class G>
__device__ void update(const SgdConstants& k, const Values& values, float* momentum, const G* gradient,
                       std::int64_t begin, std::int64_t end) {
  for (std::int64_t i = begin + static_cast<int>(threadIdx.x) * V; i < end; i += threads * V) {
    float g[V], kept[V] = {}, value[V];
    load<V>(gradient + i, g);
    if (keeps) load<V>(momentum + i, kept);
    values.get(i, value);
#pragma unroll
    for (int j = 0; j < V; ++j) {
      const float step = __fmaf_rn(k.decay, value[j], __fmul_rn(k.clip, g[j]));
      kept[j] = __fmaf_rn(k.momentum, kept[j], step);
      value[j] = __fmaf_rn(-k.rate, kept[j], value[j]);
    }
    if (keeps) store<V>(momentum + i, kept);
    values.set(i, value);
  }
}

template <int V, bool keeps, class G>
__device__ void update_part_by(const SgdConstants& k, const SgdItem& s, std::int64_t begin, std::int64_t end) {
  const G* gradient = static_cast<const G*>(s.gradient);
  if (s.remainder == nullptr)
    update<V, keeps>(k, Weights{static_cast<float*>(s.weight)}, s.momentum, gradient, begin, end);
  else
    update<V, keeps>(k, SplitWeights{static_cast<bf16*>(s.weight), s.remainder}, s.momentum, gradient, begin, end);
}

template <int V, bool keeps>
__device__ void update_part(const SgdConstants& k, const SgdItem& s, std::int64_t begin, std::int64_t end) {
  s.single_gradient ? update_part_by<V, keeps, float>(k, s, begin, end)
                    : update_part_by<V, keeps, bf16>(k, s, begin, end);
}

// `parts` of updates_per_block elements, dealt out to the blocks in turn.
template <bool keeps, int capacity>
__global__ void __launch_bounds__(threads)
    sgd_kernel(const __grid_constant__ List<SgdItem, capacity> list, int parts, const double* values, double momentum) {
  if (values[StepValues::finite] == 0) return;
  for (int part = static_cast<int>(blockIdx.x); part < parts; part += static_cast<int>(gridDim.x)) {
    const SgdItem& s = item_of(list, part);
    const SgdConstants k = SgdConstants::of(values, momentum, s.decays);
    const std::int64_t begin = (part - s.first) * updates_per_block;
    const std::int64_t end = begin + updates_per_block < s.count ? begin + updates_per_block : s.count;
    if (s.packs && end % 4 == 0)
      update_part<4, keeps>(k, s, begin, end);
    else
      update_part<1, keeps>(k, s, begin, end);
  }
}

}  // namespace

void sgd(Stream& stream, const Sgd& op) {
  constexpr const char* name = "sgd";
  check_arguments(name, op);
  for (const SgdSlab& slab : op.slabs)
    require(slab.weight.dtype == DType::f32 || slab.weight.dtype == DType::bf16, name, "needs f32 or bf16 on a GPU");
  CudaStream& s = cuda_stream(stream);
  const auto flush = [&](const auto& list, unsigned parts) {
    // Four blocks are what a processor holds.
    const unsigned blocks = s.shares_processors() ? std::min(parts, 4 * static_cast<unsigned>(s.processors())) : parts;
    const auto launch = [&](auto keeps) {
      sgd_kernel<decltype(keeps)::value>
          <<<blocks, threads, 0, s.handle()>>>(list, static_cast<int>(parts), op.step_values.as<double>(), op.momentum);
    };
    if (op.momentum != 0)
      launch(std::true_type());
    else
      launch(std::false_type());
    launched(name);
  };
  with_list<SgdItem, 32, 512>(op.slabs.size(), flush, [&](auto& builder) {
    for (const SgdSlab& slab : op.slabs) {
      const std::int64_t count = slab.weight.shape.elements();
      bool aligned = true;
      for (const Tensor* tensor : {&slab.weight, &slab.remainder, &slab.momentum, &slab.gradient})
        aligned = aligned && reinterpret_cast<std::uintptr_t>(tensor->data) % 16 == 0;
      builder.add({slab.weight.data, optional<std::int16_t>(slab.remainder), optional<float>(slab.momentum),
                   slab.gradient.data, count, 0, slab.gradient.dtype == DType::f32, slab.decay, aligned},
                  divide_up(count, updates_per_block));
    }
  });
}

}  // namespace weft::cuda
