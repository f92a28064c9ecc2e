// Hopper's bulk copies from global to shared memory: one thread asks, the copy engine moves, and a barrier in shared
// memory tells when a piece has come. Sizes and addresses are multiples of 16 bytes.
#pragma once

#include <cstdint>

#include <cuda_runtime.h>

namespace weft::cuda {

__device__ inline unsigned shared_address(const void* p) { return static_cast<unsigned>(__cvta_generic_to_shared(p)); }

// Counts the bytes of one stage, or those who are done with it. Its phases are 0, 1, 0, ...; waiting for phase 1 of a new
// one ends at once.
struct CopyBarrier {
  std::uint64_t state;

  // A phase ends after this many calls of expect or arrive.
  __device__ void init(unsigned calls) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(this)), "r"(calls));
  }
  __device__ void arrive() {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(this)) : "memory");
  }
  // As arrive; and the phase does not end before this many bytes have arrived.
  __device__ void expect(unsigned bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(this)), "r"(bytes)
                 : "memory");
  }
  __device__ void wait(unsigned phase) {
    asm volatile(
        "{\n"
        ".reg .pred done;\n"
        "again:\n"
        "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
        "@!done bra again;\n"
        "}\n" ::"r"(shared_address(this)),
        "r"(phase)
        : "memory");
  }
};

// After init() of barriers, before the copies that use them.
__device__ inline void fence_barriers() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

__device__ inline void copy_to_shared(void* to, const void* from, unsigned bytes, CopyBarrier& barrier) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
                   shared_address(to)),
               "l"(from), "r"(bytes), "r"(shared_address(&barrier))
               : "memory");
}

}  // namespace weft::cuda
