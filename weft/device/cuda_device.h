// NVIDIA GPUs. All code that knows CUDA is in weft/device/cuda/; builds without nvcc have weft/device/unavailable/ instead.
// CUDA's libraries are loaded when a device is made, so that the program starts on machines without them.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "weft/device/device.h"

namespace weft {

// One of the GPUs that the process sees (CUDA_VISIBLE_DEVICES chooses). UserError where this build or machine has none,
// or fewer than index + 1.
std::unique_ptr<Device> make_cuda_device(int index = 0);

// What `weft devices` prints; starts nothing on a GPU.
struct CudaReport {
  struct Gpu {
    std::string name, capability;
    std::size_t total_bytes = 0, free_bytes = 0;
    int multiprocessors = 0;
  };
  std::string built_with;  // "CUDA 13.0", or why it is not built in
  std::string driver;      // the newest CUDA the driver supports, or why there is none
  std::string blas;        // cuBLASLt's version, or why it does not load
  std::string cudnn;       // cuDNN's
  std::vector<Gpu> gpus;
};
CudaReport cuda_report();

}  // namespace weft
