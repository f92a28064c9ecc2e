#pragma once

#include "weft/device/device.h"

namespace weft {

// FLOP a second of a product of two square matrices of random numbers [size, size], in `dtype`: what a device that queues
// its work reaches at best. The median of a few runs. Takes 3 size^2 elements of device memory for as long as it runs.
double measure_product_peak(Device& device, DType dtype, std::int64_t size = 8192);

}  // namespace weft
