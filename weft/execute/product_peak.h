#pragma once

#include "weft/device/device.h"

namespace weft {

// The FLOP/s that a device that queues its work reaches at best: the median of a few products of two random matrices
// [size, size] in `dtype`. Uses 3 size^2 elements of device memory while it runs.
double measure_product_peak(Device& device, DType dtype, std::int64_t size = 8192);

}  // namespace weft
