#include "weft/device/cuda/hopper/kernel.cuh"

WEFT_KERNEL_OF_GROUPS(weight_gradient_short, WeightGradientShort)
