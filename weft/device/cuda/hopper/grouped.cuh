// grouped_matmul by CUTLASS's pointer-array kernels for Hopper: persistent, TMA and wgmma, groups' sizes in device
// memory. One kernel a source file: each takes a minute to compile.
#pragma once

#include <cute/tensor.hpp>
#include <cutlass/cutlass.h>
#include <cutlass/epilogue/collective/collective_builder.hpp>
#include <cutlass/epilogue/dispatch_policy.hpp>
#include <cutlass/gemm/collective/collective_builder.hpp>
#include <cutlass/gemm/device/gemm_universal_adapter.h>
#include <cutlass/gemm/dispatch_policy.hpp>
#include <cutlass/gemm/group_array_problem_shape.hpp>
#include <cutlass/gemm/kernel/gemm_universal.hpp>
#include <cutlass/kernel_hardware_info.h>

#include "weft/device/cuda/hopper/products.h"
#include "weft/device/cuda/kernels/launch.cuh"

namespace weft::cuda::hopper {

template <class Stride>
__device__ void set_stride(Stride& stride, std::int64_t value) {
  if constexpr (cute::is_static<std::remove_cvref_t<decltype(cute::get<0>(stride))>>::value)
    cute::get<1>(stride) = value;
  else
    cute::get<0>(stride) = value;
}

// How a kernel goes over a result: tiles of rows x columns, and how many blocks side by side share what they read. Rows of
// groups are rounded up to rows * down. Two warp groups work on halves of one tile, or (turns) each on a tile of its own:
// while one multiplies, the other stores. stored: columns of a tile that are stored at once.
template <int tile_rows, int tile_columns, int blocks_down, int blocks_across, bool turns, int stored = 32>
struct Way {
  using Tile = cute::Shape<cute::Int<tile_rows>, cute::Int<tile_columns>, cute::_64>;
  using Cluster = cute::Shape<cute::Int<blocks_down>, cute::Int<blocks_across>, cute::_1>;
  using Stored = cute::Shape<cute::Int<turns ? 64 : 128>, cute::Int<stored>>;
  using Schedule = std::conditional_t<turns, cutlass::gemm::KernelPtrArrayTmaWarpSpecializedPingpong,
                                      cutlass::gemm::KernelPtrArrayTmaWarpSpecializedCooperative>;
  using Store = std::conditional_t<turns, cutlass::epilogue::PtrArrayTmaWarpSpecializedPingpong,
                                   cutlass::epilogue::PtrArrayTmaWarpSpecializedCooperative>;
};

using ForRows = Way<128, 256, 1, 2, false, 64>;   // rows of groups: pairs across, so that they round up to 128
using ForWeights = Way<128, 192, 2, 1, true>;     // sums over rows; long stores of f32 hide behind the other's products
using ForShortSums = Way<128, 256, 2, 1, false>;  // the same where few rows come to a group

// a_layout: RowMajor where sum elements lie side by side; b_layout: ColumnMajor where they do. D: of the result; C: like D
// where results are added up, void otherwise.
template <class LayoutA, class LayoutB, class C, class D, class Way>
struct Grouped {
  using Shape = cutlass::gemm::GroupProblemShape<cute::Shape<int, int, int>>;
  using Element = cutlass::bfloat16_t;
  using LayoutD = cutlass::layout::RowMajor;
  using Epilogue = typename cutlass::epilogue::collective::CollectiveBuilder<
      cutlass::arch::Sm90, cutlass::arch::OpClassTensorOp, typename Way::Tile, typename Way::Cluster,
      typename Way::Stored, float, float, C, LayoutD*, 16 / sizeof(D), D, LayoutD*, 16 / sizeof(D),
      typename Way::Store>::CollectiveOp;
  using Mainloop = typename cutlass::gemm::collective::CollectiveBuilder<
      cutlass::arch::Sm90, cutlass::arch::OpClassTensorOp, Element, LayoutA*, 8, Element, LayoutB*, 8, float,
      typename Way::Tile, typename Way::Cluster,
      cutlass::gemm::collective::StageCountAutoCarveout<static_cast<int>(sizeof(typename Epilogue::SharedStorage))>,
      typename Way::Schedule>::CollectiveOp;
  using Kernel = cutlass::gemm::kernel::GemmUniversal<Shape, Mainloop, Epilogue>;
  using Gemm = cutlass::gemm::device::GemmUniversalAdapter<Kernel>;
  using StrideA = typename Kernel::InternalStrideA;
  using StrideB = typename Kernel::InternalStrideB;
  using StrideD = typename Kernel::InternalStrideD;
  using Addend = C;
  using Sizes = typename Shape::UnderlyingProblemShape;

  // Of one group, as CUTLASS wants them: each an array over the groups.
  struct Lists {
    Sizes* sizes;
    const Element **a, **b;
    D** d;
    StrideA* a_stride;
    StrideB* b_stride;
    StrideD* d_stride;
  };
};
template <class G>
__global__ void list_groups(Products p, typename G::Lists lists) {
  const int g = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (g >= p.groups) return;
  const int count = p.counts[g];
  const std::int64_t offset = p.offsets[g];
  using Element = typename G::Element;
  const auto* a = reinterpret_cast<const Element*>(p.a) + offset * p.a_stride;
  const auto* b = reinterpret_cast<const Element*>(p.b) + (p.sums_rows ? offset * p.b_stride : g * p.b_group);
  auto* d = static_cast<std::remove_pointer_t<std::remove_pointer_t<decltype(lists.d)>>*>(p.d) +
            (p.sums_rows ? g * p.d_group : offset * p.d_stride);
  // A sum over nothing is no product for CUTLASS: such a group has no rows (zeros are written elsewhere).
  lists.sizes[g] = p.sums_rows ? cute::make_shape(count > 0 ? p.m : 0, p.n, count > 0 ? count : 64)
                               : cute::make_shape(count, p.n, p.k);
  lists.a[g] = a;
  lists.b[g] = b;
  lists.d[g] = d;
  set_stride(lists.a_stride[g], p.a_stride);
  set_stride(lists.b_stride[g], p.b_stride);
  set_stride(lists.d_stride[g], p.d_stride);
}

template <class G>
void run(CudaStream& stream, const Products& p) {
  constexpr const char* name = "grouped_matmul";
  using Gemm = typename G::Gemm;
  const auto groups = static_cast<std::size_t>(p.groups);
  const auto room = [&](std::size_t size) { return (groups * size + 255) / 256 * 256; };
  std::size_t bytes = 0;
  const auto take = [&](std::size_t size) {
    const std::size_t at = bytes;
    bytes += room(size);
    return at;
  };
  const std::size_t sizes = take(sizeof(typename G::Sizes)), a = take(8), b = take(8), d = take(8),
                    a_stride = take(sizeof(typename G::StrideA)), b_stride = take(sizeof(typename G::StrideB)),
                    d_stride = take(sizeof(typename G::StrideD));
  typename Gemm::Arguments arguments;
  arguments.mode = cutlass::gemm::GemmUniversalMode::kGrouped;
  arguments.problem_shape.num_groups = p.groups;
  arguments.hw_info.device_id = 0;
  arguments.hw_info.sm_count = stream.processors();
  auto* memory = static_cast<std::byte*>(stream.scratch(bytes + Gemm::get_workspace_size(arguments)));
  typename G::Lists lists;
  lists.sizes = reinterpret_cast<typename G::Sizes*>(memory + sizes);
  lists.a = reinterpret_cast<const typename G::Element**>(memory + a);
  lists.b = reinterpret_cast<const typename G::Element**>(memory + b);
  lists.d = reinterpret_cast<decltype(lists.d)>(memory + d);
  lists.a_stride = reinterpret_cast<typename G::StrideA*>(memory + a_stride);
  lists.b_stride = reinterpret_cast<typename G::StrideB*>(memory + b_stride);
  lists.d_stride = reinterpret_cast<typename G::StrideD*>(memory + d_stride);
  list_groups<G><<<static_cast<unsigned>(divide_up(p.groups, 64)), 64, 0, stream.handle()>>>(p, lists);
  launched(name);

  arguments.problem_shape.problem_shapes = lists.sizes;
  arguments.problem_shape.host_problem_shapes = nullptr;
  arguments.mainloop.ptr_A = lists.a;
  arguments.mainloop.dA = lists.a_stride;
  arguments.mainloop.ptr_B = lists.b;
  arguments.mainloop.dB = lists.b_stride;
  arguments.epilogue.thread.alpha = 1;
  arguments.epilogue.thread.beta = p.add ? 1.0f : 0.0f;
  if constexpr (!std::is_void_v<typename G::Addend>)
    arguments.epilogue.ptr_C = static_cast<decltype(arguments.epilogue.ptr_C)>(static_cast<void*>(lists.d));
  arguments.epilogue.dC = lists.d_stride;
  arguments.epilogue.ptr_D = lists.d;
  arguments.epilogue.dD = lists.d_stride;
  Gemm gemm;
  const auto good = [&](cutlass::Status status) {
    require(status == cutlass::Status::kSuccess, name, "CUTLASS refuses");
  };
  good(gemm.initialize(arguments, memory + bytes, stream.handle()));
  good(gemm.run(stream.handle()));
}

}  // namespace weft::cuda::hopper
