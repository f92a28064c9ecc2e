// What keeps the arithmetic of kernels short. The sigmoid takes four instructions; its absolute error is below 2^-22:
// that of e^-x, relatively about |x| 2^-24, matters only where the result is far from 0 and from 1. NaN passes through;
// infinities give 0 and 1.
#pragma once

namespace weft::cuda {

__device__ inline float quick_exp2(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
__device__ inline float quick_reciprocal(float x) {
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
__device__ inline float quick_sigmoid(float x) { return quick_reciprocal(1.0f + quick_exp2(-1.4426950408889634f * x)); }

// x, hidden from the compiler: what is computed from it is not kept in registers from one turn of a loop to the next.
__device__ inline int recomputed(int x) {
  asm volatile("" : "+r"(x));
  return x;
}

}  // namespace weft::cuda
