#include "weft/device/cuda/hopper/grouped.cuh"
#include "weft/device/cuda/hopper/kernels.h"

namespace weft::cuda::hopper {

void weight_gradient_narrow(CudaStream& stream, const Products& products) {
  run<Grouped<cutlass::layout::ColumnMajor, cutlass::layout::RowMajor, cutlass::bfloat16_t, cutlass::bfloat16_t,
              ForWeights>>(stream, products);
}

}  // namespace weft::cuda::hopper
