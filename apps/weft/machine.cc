#include "apps/weft/machine.h"

#include <algorithm>
#include <thread>

#include "weft/base/error.h"
#include "weft/device/cpu/device.h"
#include "weft/device/cuda_device.h"
#include "weft/device/null/device.h"
#include "weft/execute/dry_run.h"

namespace weft {

int cores() { return static_cast<int>(std::max(1u, std::thread::hardware_concurrency())); }

std::unique_ptr<Device> make_device(const std::string& name) {
  if (name == "cpu") return std::make_unique<CpuDevice>();
  if (name == "cuda") return make_cuda_device();
  throw UserError("--device {}: there is no such device; there are 'cpu' and 'cuda'", name);
}

Pricer counting_pricer(const Module& module) {
  return [&module, device = std::make_shared<NullDevice>(), stream = std::make_shared<NullStream>()](const Piece& piece,
                                                                                                     Phase phase) {
    stream->reset();
    dry_run(module, piece, phase, device->operations(), *stream);
    return PieceCost{stream->total().flops, stream->total().bytes};
  };
}

}  // namespace weft
