// The few headers of CUTLASS that the kernels of this folder are made of. Its collective_builder.hpp, gemm_universal.hpp and
// gemm_universal_adapter.h bring the kernels of every architecture with them, which takes a third of the time to read all.
// The declaration below is in only one of those. (CUTLASS 4.2; CMake pins the version.)
#pragma once

#include <cute/tensor.hpp>
#include <cutlass/cutlass.h>
#include <cutlass/detail/layout.hpp>

namespace cutlass::epilogue::collective {
template <class DispatchPolicy, class... Args>
class CollectiveEpilogue;
}  // namespace cutlass::epilogue::collective

#include <cutlass/epilogue/collective/builders/sm90_common.inl>
#include <cutlass/epilogue/collective/sm90_epilogue_array_tma_warpspecialized.hpp>
#include <cutlass/epilogue/dispatch_policy.hpp>
#include <cutlass/gemm/collective/builders/sm90_gmma_builder.inl>
#include <cutlass/gemm/collective/collective_mma_decl.hpp>
#include <cutlass/gemm/collective/sm90_mma_array_tma_gmma_ss_warpspecialized.hpp>
#include <cutlass/gemm/dispatch_policy.hpp>
#include <cutlass/gemm/group_array_problem_shape.hpp>
#include <cutlass/gemm/kernel/gemm_universal_decl.h>
#include <cutlass/gemm/kernel/sm90_gemm_array_tma_warpspecialized_cooperative.hpp>
#include <cutlass/gemm/kernel/sm90_gemm_array_tma_warpspecialized_pingpong.hpp>
#include <cutlass/kernel_hardware_info.h>
