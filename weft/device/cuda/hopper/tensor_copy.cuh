// Copies from global to shared memory by tensor maps, and what blocks of a cluster tell each other.
#pragma once

#include <cuda.h>

#include "weft/device/cuda/kernels/bulk_copy.cuh"

namespace weft::cuda::hopper {

// The blocks of a cluster, as bits, that a copy goes to: to the same place in each, where it counts on the same barrier.
using Blocks = std::uint16_t;

__device__ inline void prefetch(const CUtensorMap& map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(&map) : "memory");
}

// A box of the map that begins at these indices, the fastest first. What is outside the tensor reads as zeros. _for:
// for several blocks at once.
__device__ inline void load_box(void* to, const CUtensorMap& map, CopyBarrier& barrier, int i, int j) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4}], [%2];" ::"r"(
          shared_address(to)),
      "l"(&map), "r"(shared_address(&barrier)), "r"(i), "r"(j)
      : "memory");
}
__device__ inline void load_box_for(void* to, const CUtensorMap& map, CopyBarrier& barrier, int i, int j,
                                    Blocks blocks) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster "
      "[%0], [%1, {%3, %4}], [%2], %5;" ::"r"(shared_address(to)),
      "l"(&map), "r"(shared_address(&barrier)), "r"(i), "r"(j), "h"(blocks)
      : "memory");
}
__device__ inline void load_box(void* to, const CUtensorMap& map, CopyBarrier& barrier, int i, int j, int k) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes "
      "[%0], [%1, {%3, %4, %5}], [%2];" ::"r"(shared_address(to)),
      "l"(&map), "r"(shared_address(&barrier)), "r"(i), "r"(j), "r"(k)
      : "memory");
}
__device__ inline void load_box_for(void* to, const CUtensorMap& map, CopyBarrier& barrier, int i, int j, int k,
                                    Blocks blocks) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster "
      "[%0], [%1, {%3, %4, %5}], [%2], %6;" ::"r"(shared_address(to)),
      "l"(&map), "r"(shared_address(&barrier)), "r"(i), "r"(j), "r"(k), "h"(blocks)
      : "memory");
}

__device__ inline unsigned rank_in_cluster() {
  unsigned rank;
  asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
}
// At a barrier of another block of the cluster, which is there where `barrier` is here.
__device__ inline void arrive_at(CopyBarrier& barrier, unsigned rank) {
  asm volatile(
      "{\n"
      ".reg .b32 there;\n"
      "mapa.shared::cluster.u32 there, %0, %1;\n"
      "mbarrier.arrive.shared::cluster.b64 _, [there];\n"
      "}\n" ::"r"(shared_address(&barrier)),
      "r"(rank)
      : "memory");
}
// All threads of all blocks of the cluster; barriers that were set up before are seen by all after it.
__device__ inline void synchronize_cluster() {
  asm volatile(
      "fence.mbarrier_init.release.cluster;\n"
      "barrier.cluster.arrive.release;\n"
      "barrier.cluster.wait.acquire;" ::
          : "memory");
}

}  // namespace weft::cuda::hopper
