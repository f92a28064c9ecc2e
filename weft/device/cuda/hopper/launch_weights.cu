// Nothing for a GPU in here. It is read for one all the same: a compiler cache asks nvcc for that half of a file only, and
// would take an old object for the new one if the host's half alone has changed.
#include "weft/device/cuda/hopper/launch.cuh"

namespace weft::cuda::hopper {

void weight_gradient(CudaStream& stream, const Products& products) {
  run<WeightGradient>(stream, products, weight_gradient_kernel());
}

void weight_gradient_short(CudaStream& stream, const Products& products) {
  run<WeightGradientShort>(stream, products, weight_gradient_short_kernel());
}

void weight_gradient_add(CudaStream& stream, const Products& products) {
  run<WeightGradientAdd>(stream, products, weight_gradient_add_kernel());
}

void weight_gradient_narrow(CudaStream& stream, const Products& products) {
  run<WeightGradientNarrow>(stream, products, weight_gradient_narrow_kernel());
}

}  // namespace weft::cuda::hopper
