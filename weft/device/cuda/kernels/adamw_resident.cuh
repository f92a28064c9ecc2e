// AdamW on a few processors beside other kernels: one block on each, which stays, and whose copies never stop.
//
// A processor of an H200 moves about 100 GB/s this way (27 bytes a clock out, of 32 that are its limit), whether it has a
// neighbour that does the same or not; 48 of them fill the memory. From about 30 on they are not equally fast, so parts go
// to whoever is free: dealt out in turn, 48 processors took a sixth longer. Bulk copies out of shared memory were
// a third slower than stores from registers, hints to evict what passes through made no product beside it faster.
#pragma once

#include "weft/device/cuda/kernels/adamw.cuh"
#include "weft/device/cuda/kernels/bulk_copy.cuh"
#include "weft/device/cuda/kernels/item_list.cuh"
#include "weft/device/cuda/kernels/launch_hopper.cuh"

namespace weft::cuda {

// A block has a ring of stages in shared memory; a stage holds the weights (and remainders), m, v and gradients of
// `elements` of a slab. One warp loads, the others share each stage. (A ring for each warp, with an eighth of the
// elements, was a fifth slower; so were stages of half the elements.) 192 KB: there are never two such blocks on one
// processor, nor a product beside one.
struct Resident {
  static constexpr int warps = 8, threads = 32 * (warps + 1), elements = 4096, stages = 3;
  static constexpr int share = elements / warps;  // of a warp
  static constexpr int packs = share / 128;       // of four elements, per thread
  static constexpr int stage_bytes = elements * 16;
  static constexpr int batch = 4;  // parts that a block takes at once: the next ones are known in time
  static constexpr int barrier_bytes = 128;
  static constexpr int shared_bytes = barrier_bytes + stages * stage_bytes;
};
static_assert(Resident::stages * (2 * sizeof(CopyBarrier) + sizeof(int)) <= Resident::barrier_bytes);

// A part of a slab on its way.
struct ResidentPart {
  const SlabItem& slab;
  std::int64_t begin;
  int count, bulk;  // elements, and how many of them come by bulk copies

  __device__ ResidentPart(const SlabItem& s, int part)
      : slab(s), begin((part - s.first) * static_cast<std::int64_t>(Resident::elements)) {
    const std::int64_t left = s.count - begin;
    count = left < Resident::elements ? static_cast<int>(left) : Resident::elements;
    bulk = s.packs ? count / 8 * 8 : 0;
  }
  __device__ bool split() const { return slab.remainder != nullptr; }
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

__device__ inline void start_loading(std::byte* stage, CopyBarrier& barrier, const ResidentPart& part) {
  constexpr int column = 4 * Resident::elements;
  const unsigned n = static_cast<unsigned>(part.bulk), gradient = part.slab.single_gradient ? 4 : 2;
  barrier.expect(n * (12 + gradient));
  if (n == 0) return;
  if (part.split()) {
    copy_to_shared(stage, static_cast<const bf16*>(part.slab.weight) + part.begin, 2 * n, barrier);
    copy_to_shared(stage + column / 2, part.slab.remainder + part.begin, 2 * n, barrier);
  } else {
    copy_to_shared(stage, static_cast<const float*>(part.slab.weight) + part.begin, 4 * n, barrier);
  }
  copy_to_shared(stage + column, part.slab.m + part.begin, 4 * n, barrier);
  copy_to_shared(stage + 2 * column, part.slab.v + part.begin, 4 * n, barrier);
  copy_to_shared(stage + 3 * column, static_cast<const std::byte*>(part.slab.gradient) + part.begin * gradient,
                 gradient * n, barrier);
}

// A warp's share of what has come into a stage, updated. from, to: the part's values in the stage and in their slab.
// read(): called when the warp has taken all it needs from the stage.
template <bool whole, class G, class Values, class Read>
__device__ void update_share(const StepConstants& k, const std::byte* stage, const ResidentPart& part,
                             const Values& from, const Values& to, int thread, const Read& read) {
  constexpr int packs = Resident::packs, elements = Resident::elements;
  const float* m = reinterpret_cast<const float*>(stage) + elements;
  const float* v = m + elements;
  const G* gradient = reinterpret_cast<const G*>(v + elements);
  float g[packs][4], first[packs][4], second[packs][4], x[packs][4];
  const int begin = thread / 32 * Resident::share + thread % 32 * 4;
#pragma unroll
  for (int p = 0; p < packs; ++p) {
    const int i = begin + p * 128;
    if (!whole && i >= part.bulk) break;
    load<4>(gradient + i, g[p]);
    load<4>(m + i, first[p]);
    load<4>(v + i, second[p]);
    from.get(i, x[p]);
  }
  read();
  float *to_m = part.slab.m + part.begin, *to_v = part.slab.v + part.begin;
#pragma unroll
  for (int p = 0; p < packs; ++p) {
    const int i = begin + p * 128;
    if (!whole && i >= part.bulk) break;
#pragma unroll
    for (int j = 0; j < 4; ++j) update_one(k, g[p][j], first[p][j], second[p][j], x[p][j]);
    store<4>(to_m + i, first[p]);
    store<4>(to_v + i, second[p]);
    to.set(i, x[p]);
  }
}

template <bool whole, class G, class Read>
__device__ void update_share(const StepConstants& k, std::byte* stage, const ResidentPart& part, int thread,
                             const Read& read) {
  if (part.split()) {
    const SplitWeights from{reinterpret_cast<bf16*>(stage),
                            reinterpret_cast<std::int16_t*>(stage) + Resident::elements};
    const SplitWeights to{static_cast<bf16*>(part.slab.weight) + part.begin, part.slab.remainder + part.begin};
    update_share<whole, G>(k, stage, part, from, to, thread, read);
  } else {
    const Weights from{reinterpret_cast<float*>(stage)};
    const Weights to{static_cast<float*>(part.slab.weight) + part.begin};
    update_share<whole, G>(k, stage, part, from, to, thread, read);
  }
}

// `parts` of Resident::elements. Each block begins with the batch of its number; taken counts those taken then. What does
// not come in packs of 16 bytes is read and written directly.
template <int capacity>
__global__ void __launch_bounds__(Resident::threads, 1)
    resident_adamw(const __grid_constant__ List<SlabItem, capacity> list, int parts, unsigned* taken,
                   const double* values, double beta1, double beta2, double eps) {
#if __CUDA_ARCH__ >= 900
  if (values[StepValues::finite] == 0) return;
  extern __shared__ __align__(128) std::byte memory[];
  CopyBarrier *full = reinterpret_cast<CopyBarrier*>(memory), *empty = full + Resident::stages;
  int* part_of = reinterpret_cast<int*>(empty + Resident::stages);  // by stage; `parts` and above: there are no more
  std::byte* ring = memory + Resident::barrier_bytes;
  const int thread = static_cast<int>(threadIdx.x);
  if (thread == 0) {
    for (int s = 0; s < Resident::stages; ++s) full[s].init(1), empty[s].init(32 * Resident::warps);
    fence_barriers();
  }
  __syncthreads();
  ListCursor<capacity> cursor{list};
  int stage = 0;
  unsigned phase = 0;
  const auto next_stage = [&] {
    if (++stage == Resident::stages) stage = 0, phase ^= 1;
  };
  if (thread >= 32 * Resident::warps) {
    if (thread > 32 * Resident::warps) return;
    for (int first = static_cast<int>(blockIdx.x) * Resident::batch;;) {
      const int next = static_cast<int>(gridDim.x + atomicAdd(taken, 1u)) * Resident::batch;
      for (int part = first; part < first + Resident::batch; ++part, next_stage()) {
        empty[stage].wait(phase ^ 1);
        part_of[stage] = part;
        if (part >= parts) return full[stage].arrive();
        start_loading(ring + stage * Resident::stage_bytes, full[stage], {cursor.at(part), part});
      }
      first = next;
    }
  }
  const StepConstants constants = StepConstants::of(values, beta1, beta2, eps);
  for (;; next_stage()) {
    full[stage].wait(phase);
    const int part = part_of[stage];
    if (part >= parts) return;
    const ResidentPart now(cursor.at(part), part);
    const StepConstants k = constants.with_decay(now.slab.decays);
    std::byte* here = ring + stage * Resident::stage_bytes;
    // Each thread for itself: quicker by 1 to 3 % than one for its warp, and racecheck understands it.
    const auto give_back = [&] { empty[stage].arrive(); };
    if (now.bulk == Resident::elements)
      now.slab.single_gradient ? update_share<true, float>(k, here, now, thread, give_back)
                               : update_share<true, bf16>(k, here, now, thread, give_back);
    else
      now.slab.single_gradient ? update_share<false, float>(k, here, now, thread, give_back)
                               : update_share<false, bf16>(k, here, now, thread, give_back);
    if (now.bulk < now.count)
      update_part<1>(k, now.slab, now.begin + now.bulk, now.begin + now.count, thread, 32 * Resident::warps);
  }
#endif
}

// Blocks come in pairs like those of the products beside them: pairs are taken from one cluster of processors (GPC),
// which must not be left with odd ones. taken: room for a number.
template <int capacity>
void launch_resident(CudaStream& stream, const List<SlabItem, capacity>& list, int parts, unsigned* taken,
                     const AdamW& op) {
  const auto kernel = resident_adamw<capacity>;
  check_cuda(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, Resident::shared_bytes),
             "adamw");
  check_cuda(cudaMemsetAsync(taken, 0, sizeof *taken, stream.handle()), "adamw");
  const unsigned blocks = static_cast<unsigned>(std::max(stream.processors() / 2 * 2, 2));
  launch_clusters("adamw", stream, 2, kernel, dim3(blocks), dim3(Resident::threads), Resident::shared_bytes, list,
                  parts, taken, op.step_values.as<double>(), op.beta1, op.beta2, op.eps);
}

}  // namespace weft::cuda
