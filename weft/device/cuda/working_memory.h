// What operations need in addition to their tensors, found without running them.
#pragma once

#include <functional>

#include "weft/device/cuda/stream.h"
#include "weft/device/operations.h"

namespace weft::cuda {

// The largest need of the operations that `queue` asks for. Every operation runs up to the point where it asks its stream
// for scratch memory, or for the stream itself, to launch something; there it ends. So the count is what a run will ask for,
// by the same code. An operation must ask for scratch memory before it launches anything.
WorkingMemory working_memory_of(Blas& blas, FusedAttention* attention, const Gpu& gpu,
                                const std::function<void(const Operations&, Stream&)>& queue);

}  // namespace weft::cuda
