#include "weft/device/cuda/hopper/grouped.cuh"
#include "weft/device/cuda/hopper/kernels.h"

namespace weft::cuda::hopper {

void input_gradient(CudaStream& stream, const Products& products) {
  run<Grouped<cutlass::layout::RowMajor, cutlass::layout::RowMajor, void, cutlass::bfloat16_t, ForRows>>(stream,
                                                                                                         products);
}

}  // namespace weft::cuda::hopper
