#include "weft/base/error.h"
#include "weft/device/cuda_device.h"

namespace weft {

std::unique_ptr<Device> make_cuda_device(int) {
  throw UserError(
      "`device` cuda: weft was built without CUDA. Install CUDA 12.8 or newer so that nvcc is found (on PATH or in "
      "/usr/local/cuda/bin) and build again, or use `device` cpu");
}

CudaReport cuda_report() { return {"not built in (nvcc was not found)", "", "", "", {}}; }

}  // namespace weft
