// Words on their way from global memory through a ring of shared memory. A thread reads only what it asked for itself, so
// no thread waits for another, and what is on its way takes no registers.
#pragma once

#include "weft/device/cuda/kernels/values.cuh"

namespace weft::cuda {

// `depth` turns of `words` Words each, for each of `threads` threads. A thread asks for the words of a turn, closes
// the turn, and may have up to depth - 1 turns on their way after the one it reads.
template <class Word, int words, int depth, int threads>
struct Ring {
  Word slots[depth][words][threads];

  __device__ void ask(int turn, int word, const void* from, int thread) {
    Word* slot = &slots[turn][word][thread];
    if constexpr (sizeof(Word) >= 16) {
      static_assert(sizeof(Word) % 16 == 0);
#pragma unroll
      for (int part = 0; part < static_cast<int>(sizeof(Word) / 16); ++part)
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(address(slot) + 16 * part),
                     "l"(static_cast<const char*>(from) + 16 * part)
                     : "memory");
    } else if constexpr (sizeof(Word) >= 4) {
      asm volatile("cp.async.ca.shared.global [%0], [%1], %2;" ::"r"(address(slot)), "l"(from),
                   "n"(static_cast<int>(sizeof(Word)))
                   : "memory");
    } else {
      *slot = *static_cast<const Word*>(from);
    }
  }
  // All words of the next turn are asked for (or none, after the last).
  __device__ static void asked() { asm volatile("cp.async.commit_group;" ::: "memory"); }
  // Waits for all turns but the last `pending` that were asked for.
  template <int pending>
  __device__ static void wait() {
    asm volatile("cp.async.wait_group %0;" ::"n"(pending) : "memory");
  }
  __device__ const Word& get(int turn, int word, int thread) const { return slots[turn][word][thread]; }

 private:
  __device__ static unsigned address(const void* shared) {
    return static_cast<unsigned>(__cvta_generic_to_shared(shared));
  }
};

}  // namespace weft::cuda
