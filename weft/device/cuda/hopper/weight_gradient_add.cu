#include "weft/device/cuda/hopper/grouped.cuh"
#include "weft/device/cuda/hopper/kernels.h"

namespace weft::cuda::hopper {

void weight_gradient_add(CudaStream& stream, const Products& products) {
  run<Grouped<cutlass::layout::ColumnMajor, cutlass::layout::RowMajor, float, float, ForWeights>>(stream, products);
}

}  // namespace weft::cuda::hopper
