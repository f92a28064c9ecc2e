// Hopper's bulk copies between global and shared memory: one thread asks, the copy engine moves, and a barrier in shared
// memory tells when a piece has come. Sizes and addresses are multiples of 16 bytes.
#pragma once

#include <cstdint>

#include <cuda_runtime.h>

namespace weft::cuda {

__device__ inline unsigned shared_address(const void* p) { return static_cast<unsigned>(__cvta_generic_to_shared(p)); }

// Counts the bytes of one stage. Its phases are 0, 1, 0, ...
struct CopyBarrier {
  std::uint64_t state;

  __device__ void init() { asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(shared_address(this))); }
  // Starts a phase that ends when so many bytes have come; 0: at once.
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

// What passes through once should not push out of the L2 cache what others come back to.
__device__ inline std::uint64_t passing_policy() {
  std::uint64_t policy;
  asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
  return policy;
}

__device__ inline void copy_to_shared(void* to, const void* from, unsigned bytes, CopyBarrier& barrier,
                                      std::uint64_t policy) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1], %2, [%3], %4;" ::
          "r"(shared_address(to)),
      "l"(from), "r"(bytes), "r"(shared_address(&barrier)), "l"(policy)
      : "memory");
}

// Behind fence_for_copies() of the threads that wrote and a barrier; until copies_have_read() the source may not change.
__device__ inline void copy_to_global(void* to, const void* from, unsigned bytes, std::uint64_t policy) {
  asm volatile("cp.async.bulk.global.shared::cta.bulk_group.L2::cache_hint [%0], [%1], %2, %3;" ::"l"(to),
               "r"(shared_address(from)), "r"(bytes), "l"(policy)
               : "memory");
}
__device__ inline void fence_for_copies() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }
__device__ inline void close_group_of_copies() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }
// All groups of this thread's copies to global memory but the latest `but` have read their source.
template <int but>
__device__ void copies_have_read() {
  asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(but) : "memory");
}
__device__ inline void copies_have_ended() { asm volatile("cp.async.bulk.wait_group 0;" ::: "memory"); }

}  // namespace weft::cuda
