#include "weft/device/cuda/hopper/tensor_map.h"

#include <array>

#include <cudaTypedefs.h>
#include <cuda_runtime.h>

#include "weft/base/error.h"
#include "weft/device/cuda/check.h"

namespace weft::cuda::hopper {

CUtensorMap tensor_map(const void* data, std::initializer_list<MapDim> dims) {
  // The driver's function: nothing is linked with the driver.
  void* entry = nullptr;
  cudaDriverEntryPointQueryResult found = cudaDriverEntryPointSymbolNotFound;
  check_cuda(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &entry, 12000, cudaEnableDefault, &found),
             "asking the driver for tensor maps");
  require(found == cudaDriverEntryPointSuccess, "tensor maps", "the driver has none");
  const auto encode = reinterpret_cast<PFN_cuTensorMapEncodeTiled_v12000>(entry);

  std::array<cuuint64_t, 5> extents = {}, strides = {};
  std::array<cuuint32_t, 5> boxes = {}, steps = {1, 1, 1, 1, 1};
  cuuint32_t count = 0;
  for (const MapDim& dim : dims) {
    extents.at(count) = static_cast<cuuint64_t>(dim.extent);
    boxes.at(count) = static_cast<cuuint32_t>(dim.box);
    if (count > 0) strides.at(count - 1) = static_cast<cuuint64_t>(dim.stride) * 2;  // bytes; the first dim has none
    ++count;
  }
  CUtensorMap map;
  const CUresult result =
      encode(&map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, count, const_cast<void*>(data), extents.data(), strides.data(),
             boxes.data(), steps.data(), CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
             CU_TENSOR_MAP_L2_PROMOTION_L2_128B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  WEFT_CHECK(result == CUDA_SUCCESS, "the driver refuses a tensor map: error {}", static_cast<int>(result));
  return map;
}

}  // namespace weft::cuda::hopper
