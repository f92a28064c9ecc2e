#include "apps/weft/machine.h"

#include <algorithm>
#include <thread>

#include "weft/base/error.h"
#include "weft/device/cpu/device.h"
#include "weft/device/null/device.h"
#include "weft/device/operations.h"
#include "weft/execute/dry_run.h"

namespace weft {

int cores() { return static_cast<int>(std::max(1u, std::thread::hardware_concurrency())); }

std::unique_ptr<Device> make_device(const std::string& name) {
  if (name == "cpu") return std::make_unique<CpuDevice>();
  throw UserError("--device {}: this build has no such device; it has 'cpu'", name);
}

Pricer counting_pricer(const Module& module) {
  return [&module, device = std::make_shared<NullDevice>(), stream = std::make_shared<NullStream>()](const Piece& piece,
                                                                                                     Phase phase) {
    stream->reset();
    dry_run(module, piece, phase, device->operations(), *stream);
    return PieceCost{stream->total().flops, stream->total().bytes};
  };
}

std::vector<std::string> missing_operations(const Module& module, const Device& device) {
  const NullDevice counting;
  NullStream stream;
  for (const auto* pieces : {&module.pieces, &module.updates})
    for (const Piece& piece : *pieces)
      for (Phase phase : {Phase::forward, Phase::backward, Phase::weight_gradient, Phase::evaluate, Phase::update})
        dry_run(module, piece, phase, counting.operations(), stream);
  std::vector<std::string> missing;
#define WEFT_LACKS(name, Arguments) \
  if (!device.operations().name && stream.by_operation().contains(#name)) missing.push_back(#name);
  WEFT_OPERATIONS(WEFT_LACKS)
#undef WEFT_LACKS
  return missing;
}

}  // namespace weft
