// Weights' gradients of grouped_matmul by CUTLASS's pointer-array kernels for Hopper: persistent, TMA and wgmma, groups'
// sizes in device memory. Kernels are compiled one per file, without the host's part of them, which launch.cuh makes.
#pragma once

#include "weft/device/cuda/hopper/cutlass.cuh"
#include "weft/device/cuda/hopper/products.h"

namespace weft::cuda::hopper {

// How a kernel goes over a result: tiles of rows x columns, and how many blocks side by side share what they read. Two
// warp groups work on halves of one tile, or (turns) each on a tile of its own: while one multiplies, the other stores.
template <int tile_rows, int tile_columns, int blocks_down, int blocks_across, bool turns>
struct Way {
  static constexpr int stored = 32;  // columns of a tile at once
  using Tile = cute::Shape<cute::Int<tile_rows>, cute::Int<tile_columns>, cute::_64>;
  using Cluster = cute::Shape<cute::Int<blocks_down>, cute::Int<blocks_across>, cute::_1>;
  using Stored = cute::Shape<cute::Int<turns ? 64 : 128>, cute::Int<stored>>;
  using Schedule = std::conditional_t<turns, cutlass::gemm::KernelPtrArrayTmaWarpSpecializedPingpong,
                                      cutlass::gemm::KernelPtrArrayTmaWarpSpecializedCooperative>;
  static constexpr unsigned down = blocks_down, across = blocks_across;
  static constexpr int stores = tile_rows * tile_columns / ((turns ? 64 : 128) * stored);  // of a tile
  static constexpr int stored_by_thread = 64 * stored / 128;                               // elements
};

using ForWeights = Way<128, 192, 2, 1, true>;  // sums over rows; long stores of f32 hide behind the other's products
using ForNarrowWeights = Way<192, 128, 1, 2, true>;  // bf16 results; 128 columns divide most widths, which 192 do not
using ForShortSums = Way<128, 256, 2, 1, false>;     // where few rows come to a group

// D: of the result; C: like D where results are added up, void otherwise. Sum elements lie one below the other in both
// factors.
template <class C, class D, class Way>
struct Grouped {
  using Shape = cutlass::gemm::GroupProblemShape<cute::Shape<int, int, int>>;
  using Element = cutlass::bfloat16_t;
  using Stride = cute::Stride<std::int64_t, cute::_1, cute::_0>*;  // of C and D: rows
  using Stored = typename Way::Stored;
  static constexpr bool adds = !std::is_void_v<C>;
  // As CUTLASS's builder of epilogues chooses it: up to four parts of C and two of D on their way, in the same memory.
  using Staging = cutlass::epilogue::Sm90PtrArrayTmaWarpSpecialized<std::min(Way::stores, 4), 2, Way::stored_by_thread,
                                                                    adds, false, 2>;
  using Fusion = cutlass::epilogue::fusion::FusionCallbacks<
      Staging, cutlass::epilogue::fusion::LinearCombination<D, float, C, float>, typename Way::Tile, Stored>;
  using Swizzle =
      decltype(cutlass::gemm::collective::detail::ss_smem_selector<
               cute::GMMA::Major::K, D, decltype(cute::get<0>(Stored{})), decltype(cute::get<1>(Stored{}))>());
  using Row = std::remove_pointer_t<Stride>;
  using Epilogue = cutlass::epilogue::collective::CollectiveEpilogue<
      Staging, typename Way::Tile, Stored, C, Stride, D, Stride, Fusion, cute::SM90_TMA_LOAD, Swizzle,
      decltype(cutlass::epilogue::collective::detail::sm90_get_smem_load_op_for_source<Row, D, Stored>()),
      cute::SM90_TMA_STORE, Swizzle,
      decltype(cutlass::epilogue::collective::detail::sm90_get_smem_store_op_for_accumulator<Row, D, Stored>()),
      cute::Copy_Atom<cute::SM90_U32x4_STSM_N, cutlass::half_t>, void>;
  using Mainloop = typename cutlass::gemm::collective::CollectiveBuilder<
      cutlass::arch::Sm90, cutlass::arch::OpClassTensorOp, Element, cutlass::layout::ColumnMajor*, 8, Element,
      cutlass::layout::RowMajor*, 8, float, typename Way::Tile, typename Way::Cluster,
      cutlass::gemm::collective::StageCountAutoCarveout<static_cast<int>(sizeof(typename Epilogue::SharedStorage))>,
      typename Way::Schedule>::CollectiveOp;
  using Kernel = cutlass::gemm::kernel::GemmUniversal<Shape, Mainloop, Epilogue>;
  using StrideA = typename Kernel::InternalStrideA;
  using StrideB = typename Kernel::InternalStrideB;
  using StrideD = typename Kernel::InternalStrideD;
  using Addend = C;
  using Tiles = Way;
  using Sizes = typename Shape::UnderlyingProblemShape;
};

using Narrow = cutlass::bfloat16_t;
using WeightGradient = Grouped<void, float, ForWeights>;
using WeightGradientShort = Grouped<void, float, ForShortSums>;
using WeightGradientAdd = Grouped<float, float, ForWeights>;
using WeightGradientNarrow = Grouped<Narrow, Narrow, ForNarrowWeights>;

// The body of a kernel.
template <class G>
__device__ __forceinline__ void run_kernel(const Parameters& parameters) {
  using Kernel = typename G::Kernel;
  using Params = typename Kernel::Params;
  static_assert(sizeof(Params) <= sizeof(Parameters) && alignof(Params) <= alignof(Parameters));
  static_assert(Kernel::MaxThreadsPerBlock == threads_per_block && Kernel::MinBlocksPerMultiprocessor == 1);
  extern __shared__ char shared[];
  Kernel kernel;
  kernel(reinterpret_cast<const Params&>(parameters), shared);
}

}  // namespace weft::cuda::hopper
