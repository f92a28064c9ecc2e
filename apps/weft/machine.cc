#include "apps/weft/machine.h"

#include <algorithm>

#include "weft/base/error.h"
#include "weft/base/text.h"
#include "weft/device/cpu/device.h"
#include "weft/device/cuda_device.h"
#include "weft/device/missing_operations.h"
#include "weft/device/null/device.h"
#include "weft/execute/dry_run.h"
#include "weft/train/trainer.h"

namespace weft {

std::unique_ptr<Device> make_device(const std::string& name, int place) {
  if (name == "cpu" || name == "auto") return std::make_unique<CpuDevice>();
  if (name == "cuda") return make_cuda_device(place % std::max<int>(1, static_cast<int>(cuda_report().gpus.size())));
  throw UserError("--device {}: there is no such device; there are 'cpu' and 'cuda'", name);
}

int ranks_on_device(const std::string& name, int ranks_here) {
  if (name != "cuda") return ranks_here;
  const int gpus = std::max<int>(1, static_cast<int>(cuda_report().gpus.size()));
  return (ranks_here + gpus - 1) / gpus;
}

namespace {

// Operations of a training step that the device's table lacks.
std::vector<std::string> lacking(const Device& device, const TrainOptions& options) {
  const ModelConfig config = run_config(options);
  const SessionOptions session = session_options(options, config);
  const StepPlan step = plan_step(training_step(session));
  return missing_operations(step.module, step.plan, device);
}

}  // namespace

std::string choose_device(const TrainOptions& options, std::string& why) {
  if (options.execution.device != "auto") return options.execution.device;
  if (!options.execution.emulate_network.empty() || cuda_report().gpus.empty()) return "cpu";
  if (options.dtype == DType::f64) {
    why = "the GPU does not compute in f64: training on the CPU";
  } else if (const std::vector<std::string> missing = lacking(*make_cuda_device(), options); !missing.empty()) {
    why = fmt::format("the GPU lacks what this model needs ({}): training on the CPU", join(missing, ", "));
  } else {
    return "cuda";
  }
  return "cpu";
}

Pricer counting_pricer() {
  return [device = std::make_shared<NullDevice>(), stream = std::make_shared<NullStream>()](
             const Module& module, const Plan& plan, const Node& node) {
    stream->reset();
    dry_run(module, plan, node, device->operations(), *stream);
    return PieceCost{stream->total().flops, stream->total().bytes};
  };
}

}  // namespace weft
