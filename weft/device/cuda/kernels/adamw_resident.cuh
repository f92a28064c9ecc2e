// AdamW on a few processors beside other kernels: one block on each, which stays, and whose copies never stop.
#pragma once

#include "weft/device/cuda/kernels/adamw.cuh"
#include "weft/device/cuda/kernels/bulk_copy.cuh"
#include "weft/device/cuda/kernels/item_list.cuh"
#include "weft/device/cuda/refuse.h"

namespace weft::cuda {

// teams: of `warps` each, with a ring of `stages` in shared memory; a stage holds `elements` of a slab: values, m, v and
// gradients. out: results go out by bulk copies, otherwise from registers.
template <int teams_, int warps_, int elements_, int stages_, bool out_>
struct ResidentShape {
  static constexpr int teams = teams_, warps = warps_, elements = elements_, stages = stages_;
  static constexpr bool out = out_;
  static constexpr int team_threads = warps * 32, threads = teams * team_threads;
  static constexpr int packs = elements / (team_threads * 4);  // of four elements, a thread
  static constexpr int stage_bytes = elements * (out ? 18 : 16);
  static constexpr int barrier_bytes = (teams * stages * 8 + 127) / 128 * 128;
  static constexpr int shared_bytes = barrier_bytes + teams * stages * stage_bytes;
  static_assert(packs * team_threads * 4 == elements && shared_bytes <= 232448);
};

// A part of a slab on its way.
template <class Shape>
struct ResidentPart {
  const SlabItem& slab;
  std::int64_t begin;
  int count, bulk;  // elements, and how many of them come by bulk copies

  __device__ ResidentPart(const SlabItem& s, int part)
      : slab(s), begin((part - s.first) * static_cast<std::int64_t>(Shape::elements)) {
    const std::int64_t left = s.count - begin;
    count = left < Shape::elements ? static_cast<int>(left) : Shape::elements;
    const bool streams = s.packs && s.single_weight == (s.master == nullptr);
    bulk = streams ? count / 8 * 8 : 0;
  }
  __device__ float* values() const { return static_cast<float*>(slab.master != nullptr ? slab.master : slab.weight); }
  __device__ bf16* rounded() const { return slab.master != nullptr ? static_cast<bf16*>(slab.weight) : nullptr; }
};

// Parts are met in rising order, so an item is found by going on.
template <int capacity>
struct ListCursor {
  const List<SlabItem, capacity>& list;
  int item = 0;
  __device__ const SlabItem& at(int part) {
    while (item + 1 < list.count && list.items[item + 1].first <= part) ++item;
    return list.items[item];
  }
};

template <class Shape>
__device__ void start_loading(std::byte* stage, CopyBarrier& barrier, const ResidentPart<Shape>& part,
                              std::uint64_t policy) {
  const unsigned n = static_cast<unsigned>(part.bulk), gradient = part.slab.single_gradient ? 4 : 2;
  barrier.expect(n * (12 + gradient));
  if (n == 0) return;
  copy_to_shared(stage, part.values() + part.begin, 4 * n, barrier, policy);
  copy_to_shared(stage + 4 * Shape::elements, part.slab.m + part.begin, 4 * n, barrier, policy);
  copy_to_shared(stage + 8 * Shape::elements, part.slab.v + part.begin, 4 * n, barrier, policy);
  copy_to_shared(stage + 12 * Shape::elements,
                 static_cast<const std::byte*>(part.slab.gradient) + part.begin * gradient, gradient * n, barrier,
                 policy);
}

template <class Shape>
__device__ void start_storing(const std::byte* stage, const ResidentPart<Shape>& part, std::uint64_t policy) {
  const unsigned n = static_cast<unsigned>(part.bulk);
  if (n != 0) {
    copy_to_global(part.values() + part.begin, stage, 4 * n, policy);
    copy_to_global(part.slab.m + part.begin, stage + 4 * Shape::elements, 4 * n, policy);
    copy_to_global(part.slab.v + part.begin, stage + 8 * Shape::elements, 4 * n, policy);
    if (part.rounded() != nullptr)
      copy_to_global(part.rounded() + part.begin, stage + 16 * Shape::elements, 2 * n, policy);
  }
  close_group_of_copies();
}

template <int team_threads>
__device__ void meet(int team) {
  if constexpr (team_threads == 32)
    __syncwarp();
  else
    asm volatile("bar.sync %0, %1;" ::"r"(team + 1), "n"(team_threads) : "memory");
}

__device__ inline void store_passing(float* to, const float (&x)[4]) {
  __stcs(reinterpret_cast<float4*>(to), make_float4(x[0], x[1], x[2], x[3]));
}
__device__ inline void store_passing(bf16* to, const float (&x)[4]) {
  Pack<bf16, 4> pack;
#pragma unroll
  for (int i = 0; i < 4; ++i) pack.at[i] = narrow<bf16>(x[i]);
  __stcs(reinterpret_cast<uint2*>(to), *reinterpret_cast<uint2*>(&pack));
}

// What has come into a stage, updated. read: called when the team's threads have taken what they need from it.
template <class Shape, bool whole, class G, class Read>
__device__ void update_stage(const StepConstants& k, std::byte* stage, const ResidentPart<Shape>& part, int thread,
                             const Read& read) {
  constexpr int packs = Shape::packs, E = Shape::elements;
  float* value = reinterpret_cast<float*>(stage);
  float *m = value + E, *v = m + E;
  const G* gradient = reinterpret_cast<const G*>(v + E);
  bf16* rounded = reinterpret_cast<bf16*>(v + 2 * E);
  float g[packs][4], first[packs][4], second[packs][4], x[packs][4];
#pragma unroll
  for (int p = 0; p < packs; ++p) {
    const int i = (p * Shape::team_threads + thread) * 4;
    if (!whole && i >= part.bulk) break;
    load<4>(gradient + i, g[p]);
    load<4>(m + i, first[p]);
    load<4>(v + i, second[p]);
    load<4>(value + i, x[p]);
  }
  if constexpr (!Shape::out) read();
  float *to_value = part.values() + part.begin, *to_m = part.slab.m + part.begin, *to_v = part.slab.v + part.begin;
  bf16* to_rounded = part.rounded();
#pragma unroll
  for (int p = 0; p < packs; ++p) {
    const int i = (p * Shape::team_threads + thread) * 4;
    if (!whole && i >= part.bulk) break;
#pragma unroll
    for (int j = 0; j < 4; ++j) update_one(k, g[p][j], first[p][j], second[p][j], x[p][j]);
    if constexpr (Shape::out) {
      store<4>(m + i, first[p]);
      store<4>(v + i, second[p]);
      store<4>(value + i, x[p]);
      if (to_rounded != nullptr) store<4>(rounded + i, x[p]);
    } else {
      store_passing(to_m + i, first[p]);
      store_passing(to_v + i, second[p]);
      store_passing(to_value + i, x[p]);
      if (to_rounded != nullptr) store_passing(to_rounded + part.begin + i, x[p]);
    }
  }
}

// `parts` of Shape::elements, dealt out to the teams in turn.
template <class Shape, int capacity>
__global__ void __launch_bounds__(Shape::threads, 1)
    resident_adamw(const __grid_constant__ List<SlabItem, capacity> list, int parts, const double* values, double beta1,
                   double beta2, double eps) {
#if __CUDA_ARCH__ >= 900
  if (values[StepValues::finite] == 0) return;
  extern __shared__ __align__(128) std::byte memory[];
  const int team = static_cast<int>(threadIdx.x) / Shape::team_threads,
            thread = static_cast<int>(threadIdx.x) % Shape::team_threads;
  CopyBarrier* barriers = reinterpret_cast<CopyBarrier*>(memory) + team * Shape::stages;
  std::byte* ring = memory + Shape::barrier_bytes + team * Shape::stages * Shape::stage_bytes;
  const bool asks = thread == 0;  // for copies
  const std::uint64_t policy = passing_policy();
  if (asks) {
    for (int s = 0; s < Shape::stages; ++s) barriers[s].init();
    fence_for_copies();
  }
  meet<Shape::team_threads>(team);
  const int from = static_cast<int>(blockIdx.x) * Shape::teams + team,
            step = static_cast<int>(gridDim.x) * Shape::teams;
  ListCursor<capacity> loading{list}, working{list};
  const auto load_into = [&](int stage, int part) {
    if (part < parts)
      start_loading<Shape>(ring + stage * Shape::stage_bytes, barriers[stage], {loading.at(part), part}, policy);
  };
  if (asks)
    for (int s = 0; s < Shape::stages; ++s) load_into(s, from + s * step);
  const StepConstants constants = StepConstants::of(values, beta1, beta2, eps);
  int stage = 0, before = Shape::stages - 1;
  unsigned phase = 0;
  for (int part = from; part < parts; part += step) {
    const ResidentPart<Shape> now(working.at(part), part);
    const StepConstants k = constants.with_decay(now.slab.decays);
    std::byte* here = ring + stage * Shape::stage_bytes;
    barriers[stage].wait(phase);
    const auto next = [&] {  // the stage has been read
      meet<Shape::team_threads>(team);
      if (asks) load_into(stage, part + Shape::stages * step);
    };
    if (now.bulk == Shape::elements)
      now.slab.single_gradient ? update_stage<Shape, true, float>(k, here, now, thread, next)
                               : update_stage<Shape, true, bf16>(k, here, now, thread, next);
    else
      now.slab.single_gradient ? update_stage<Shape, false, float>(k, here, now, thread, next)
                               : update_stage<Shape, false, bf16>(k, here, now, thread, next);
    if (now.bulk < now.count)
      update_part<1>(k, now.slab, now.begin + now.bulk, now.begin + now.count, thread, Shape::team_threads);
    if constexpr (Shape::out) {
      fence_for_copies();
      meet<Shape::team_threads>(team);
      if (asks) {
        start_storing(here, now, policy);
        copies_have_read<1>();  // the stage before, which is filled again
        if (part != from) load_into(before, part + (Shape::stages - 1) * step);
      }
    }
    before = stage;
    if (++stage == Shape::stages) stage = 0, phase ^= 1;
  }
  if (Shape::out && asks) copies_have_ended();
#endif
}

// 192 KB of shared memory, so there are never two on one processor, nor a product beside it. Blocks come in pairs like
// those of the products: pairs are taken from one cluster of processors (GPC), which must not be left with odd ones.
using Resident = ResidentShape<8, 1, 512, 3, false>;
template <int capacity>
void launch_resident(cudaStream_t stream, int processors, const List<SlabItem, capacity>& list, int parts,
                     const AdamW& op) {
  const auto kernel = resident_adamw<Resident, capacity>;
  check_cuda(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, Resident::shared_bytes),
             "adamw");
  cudaLaunchAttribute pair = {};
  pair.id = cudaLaunchAttributeClusterDimension;
  pair.val.clusterDim.x = 2, pair.val.clusterDim.y = 1, pair.val.clusterDim.z = 1;
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(static_cast<unsigned>(processors < 2 ? 2 : processors / 2 * 2));
  config.blockDim = dim3(Resident::threads);
  config.dynamicSmemBytes = Resident::shared_bytes;
  config.stream = stream;
  config.attrs = &pair;
  config.numAttrs = 1;
  check_cuda(cudaLaunchKernelEx(&config, kernel, list, parts, op.step_values.as<double>(), op.beta1, op.beta2, op.eps),
             "adamw");
}

}  // namespace weft::cuda
