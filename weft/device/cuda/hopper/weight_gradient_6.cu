#include "weft/device/cuda/hopper/grouped.cuh"
#include "weft/device/cuda/hopper/kernels.h"

namespace weft::cuda::hopper {

template <>
void weight_gradient<6>(CudaStream& stream, const Products& products) {
  run<Grouped<cutlass::layout::ColumnMajor, cutlass::layout::RowMajor, void, float, WayOf<6>>>(stream, products);
}

}  // namespace weft::cuda::hopper
