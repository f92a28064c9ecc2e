// The host's part of the grouped products: from sizes and pointers to CUTLASS's parameters.
#pragma once

#include <array>
#include <bit>
#include <cstring>

#include "weft/device/cuda/hopper/grouped.cuh"
#include "weft/device/cuda/hopper/kernels.h"
#include "weft/device/cuda/hopper/products.h"
#include "weft/device/cuda/kernels/launch.cuh"

namespace weft::cuda::hopper {

static_assert(std::bit_cast<std::array<int, 3>>(cute::make_shape(1, 2, 3)) == std::array{1, 2, 3}, "as struct Sizes");

// G: one of grouped.cuh; kernel: its own.
template <class G>
void run(CudaStream& stream, const Products& p, const void* kernel) {
  constexpr const char* name = "grouped_matmul";
  using Kernel = typename G::Kernel;
  using Params = typename Kernel::Params;
  static_assert(sizeof(typename G::Sizes) == sizeof(Sizes) && sizeof(typename G::StrideA) == 8 &&
                sizeof(typename G::StrideB) == 8 && sizeof(typename G::StrideD) == 8);
  static_assert(sizeof(Params) <= sizeof(Parameters) && std::is_trivially_copyable_v<Params>);
  const auto groups = static_cast<std::size_t>(p.groups);
  std::size_t bytes = 0;
  const auto take = [&](std::size_t size) {
    const std::size_t at = bytes;
    bytes += (groups * size + 255) / 256 * 256;
    return at;
  };
  const std::size_t sizes = take(sizeof(Sizes)), a = take(8), b = take(8), d = take(8), a_stride = take(8),
                    b_stride = take(8), d_stride = take(8);
  typename Kernel::Arguments arguments;
  arguments.mode = cutlass::gemm::GemmUniversalMode::kGrouped;
  arguments.problem_shape.num_groups = p.groups;
  arguments.hw_info.device_id = 0;
  arguments.hw_info.sm_count = stream.processors();
  auto* memory = static_cast<std::byte*>(stream.scratch(bytes + Kernel::get_workspace_size(arguments)));
  // Lists are written by a kernel that knows no CUTLASS: its tuples and strides lie in memory like these.
  list_groups(stream, p,
              {reinterpret_cast<Sizes*>(memory + sizes), reinterpret_cast<const __nv_bfloat16**>(memory + a),
               reinterpret_cast<const __nv_bfloat16**>(memory + b), reinterpret_cast<void**>(memory + d),
               reinterpret_cast<std::int64_t*>(memory + a_stride), reinterpret_cast<std::int64_t*>(memory + b_stride),
               reinterpret_cast<std::int64_t*>(memory + d_stride)});

  const auto at = [&](auto& pointer, std::size_t offset) {
    pointer = reinterpret_cast<std::remove_reference_t<decltype(pointer)>>(memory + offset);
  };
  at(arguments.problem_shape.problem_shapes, sizes);
  arguments.problem_shape.host_problem_shapes = nullptr;
  at(arguments.mainloop.ptr_A, a);
  at(arguments.mainloop.dA, a_stride);
  at(arguments.mainloop.ptr_B, b);
  at(arguments.mainloop.dB, b_stride);
  arguments.epilogue.thread.alpha = 1;
  arguments.epilogue.thread.beta = p.add ? 1.0f : 0.0f;
  if constexpr (!std::is_void_v<typename G::Addend>) at(arguments.epilogue.ptr_C, d);
  at(arguments.epilogue.dC, d_stride);
  at(arguments.epilogue.ptr_D, d);
  at(arguments.epilogue.dD, d_stride);
  require(Kernel::initialize_workspace(arguments, memory + bytes, stream.handle()) == cutlass::Status::kSuccess, name,
          "CUTLASS refuses");
  const Params params = Kernel::to_underlying_arguments(arguments, memory + bytes);
  Parameters parameters = {};
  std::memcpy(&parameters, &params, sizeof(params));

  check_cuda(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, Kernel::SharedStorageSize),
             name);
  cudaLaunchAttribute cluster = {};
  cluster.id = cudaLaunchAttributeClusterDimension;
  cluster.val.clusterDim = {G::Tiles::down, G::Tiles::across, 1};
  cudaLaunchConfig_t config = {};
  config.gridDim = Kernel::get_grid_shape(params);
  config.blockDim = Kernel::get_block_shape();
  config.dynamicSmemBytes = Kernel::SharedStorageSize;
  config.stream = stream.handle();
  config.attrs = &cluster;
  config.numAttrs = 1;
  void* list[] = {&parameters};
  check_cuda(cudaLaunchKernelExC(&config, kernel, list), name);
}

}  // namespace weft::cuda::hopper
