// For the files of kernels: CUTLASS for the GPU's half of the compilation only. The host's half takes a kernel's address
// and needs no more than its parameters; reading and instantiating the rest twice took a third of the time.
#pragma once

#include "weft/device/cuda/hopper/kernels.h"
#include "weft/device/cuda/hopper/products.h"
#ifdef __CUDA_ARCH__
#include "weft/device/cuda/hopper/grouped.cuh"
#else
#include <cute/int_tuple.hpp>  // with the next, all headers that have constants in device memory, which the host registers
#include <cute/underscore.hpp>
#endif
