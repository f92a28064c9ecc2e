#include "weft/device/cuda/hopper/grouped.cuh"
#include "weft/device/cuda/hopper/kernels.h"

namespace weft::cuda::hopper {

template <>
void forward<5>(CudaStream& stream, const Products& products) {
  run<Grouped<cutlass::layout::RowMajor, cutlass::layout::ColumnMajor, void, cutlass::bfloat16_t, WayOf<5>>>(stream,
                                                                                                             products);
}

}  // namespace weft::cuda::hopper
