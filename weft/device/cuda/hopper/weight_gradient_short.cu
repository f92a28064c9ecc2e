#include "weft/device/cuda/hopper/grouped.cuh"
#include "weft/device/cuda/hopper/kernels.h"

namespace weft::cuda::hopper {

void weight_gradient_short(CudaStream& stream, const Products& products) {
  run<Grouped<cutlass::layout::ColumnMajor, cutlass::layout::RowMajor, void, float, ForShortSums>>(stream, products);
}

}  // namespace weft::cuda::hopper
