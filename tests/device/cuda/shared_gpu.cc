#include "tests/device/cuda/shared_gpu.h"

#include <cstdlib>

#include <fmt/format.h>

#include "weft/base/error.h"
#include "weft/comm/launch.h"
#include "weft/comm/nccl/library.h"

namespace weft {

namespace {
// Before CUDA starts: a kernel that is loaded when it is launched first may wait for an idle GPU, on which NCCL's kernels
// wait for the rank that launches it.
const int eager = setenv("CUDA_MODULE_LOADING", "EAGER", 0);
}  // namespace

std::string why_no_shared_gpu() {
  WEFT_CHECK(eager == 0, "CUDA_MODULE_LOADING cannot be set");
  try {
    const auto library = nccl::load(process_environment());
    if (library->version >= nccl::first_with_shared_gpus) return "";
    return fmt::format("NCCL {} ({}) does not let ranks share a GPU; 2.30 does (WEFT_NCCL names a file)",
                       nccl::version_text(library->version), library->file);
  } catch (const UserError& error) {
    return error.what();
  }
}

}  // namespace weft
