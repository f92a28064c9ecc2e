// The operations of the CUDA device: all of the table. Each is defined in kernels/, matmul in blas.cc.
#pragma once

#include "weft/device/operations.h"

namespace weft::cuda {

#define WEFT_DECLARE(name, Arguments) void name(Stream&, const Arguments&);
WEFT_OPERATIONS(WEFT_DECLARE)
#undef WEFT_DECLARE

void fill_table(Operations& table);
// A kernel of ours, to ask whether this build has code for a GPU.
const void* any_kernel();

}  // namespace weft::cuda
