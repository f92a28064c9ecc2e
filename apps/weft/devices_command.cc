// `weft devices`: what was built in, and what is there.
#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "apps/weft/commands.h"
#include "apps/weft/machine.h"
#include "weft/base/json.h"
#include "weft/base/text.h"
#include "weft/comm/mpi_world.h"
#include "weft/comm/nccl_world.h"
#include "weft/comm/neighbours.h"
#include "weft/device/cpu/device.h"
#include "weft/device/cuda_device.h"
#include "weft/device/operations.h"
#include "weft/train/flags.h"

namespace weft {

namespace {

std::vector<std::string> operations_of(const Device& device) {
  std::vector<std::string> names;
#define WEFT_HAS(name, Arguments) \
  if (device.operations().name) names.push_back(#name);
  WEFT_OPERATIONS(WEFT_HAS)
#undef WEFT_HAS
  return names;
}

}  // namespace

int run_devices_command(std::span<const std::string> words) {
  bool json = false;
  FlagTable flags("weft devices", "Lists what this build and this machine can do.");
  flags.add("--json", json, "Prints JSON.");
  flags.apply(flags.scan(words));
  if (flags.help_wanted()) {
    fmt::print("{}", flags.help());
    return 0;
  }
  const CpuDevice cpu;
  const std::vector<std::string> operations = operations_of(cpu);
  const CudaReport cuda = cuda_report();
  std::unique_ptr<Device> gpu;
  if (!cuda.gpus.empty()) gpu = make_cuda_device();
  if (json) {
    Json devices = {{{"name", "cpu"},
                     {"kind", cpu.name()},
                     {"cores", usable_core_count()},
                     {"free_bytes", cpu.free_bytes()},
                     {"instruction_set", name_of(cpu.isa())},
                     {"operations", operations}}};
    for (const CudaReport::Gpu& g : cuda.gpus)
      devices.push_back({{"name", "cuda"},
                         {"kind", g.name},
                         {"compute_capability", g.capability},
                         {"multiprocessors", g.multiprocessors},
                         {"total_bytes", g.total_bytes},
                         {"free_bytes", g.free_bytes},
                         {"operations", operations_of(*gpu)}});
    const Json result = {
        {"devices", devices},
        {"mpi", mpi_version()},
        {"nccl", nccl_report()},
        {"cuda",
         {{"built_with", cuda.built_with}, {"driver", cuda.driver}, {"cublaslt", cuda.blas}, {"cudnn", cuda.cudnn}}}};
    fmt::print("{}\n", result.dump());
    return 0;
  }
  fmt::print("cpu   {}\n", cpu.name());
  fmt::print("      {} cores, {} free\n", usable_core_count(), human_bytes(static_cast<double>(cpu.free_bytes())));
  fmt::print("      {} operations: {}\n", operations.size(), join(operations, ", "));
  fmt::print("mpi   {}\n", mpi_version());
  fmt::print("nccl  {}\n", nccl_report());
  if (cuda.driver.empty()) {
    fmt::print("cuda  {}\n", cuda.built_with);
    return 0;
  }
  fmt::print("cuda  built with {}; driver: {}\n", cuda.built_with, cuda.driver);
  if (cuda.gpus.empty()) return 0;
  fmt::print("      cuBLASLt {}\n      cuDNN {}\n", cuda.blas, cuda.cudnn);
  for (const CudaReport::Gpu& g : cuda.gpus)
    fmt::print("      {}, compute capability {}, {} multiprocessors, {} free of {}\n", g.name, g.capability,
               g.multiprocessors, human_bytes(static_cast<double>(g.free_bytes)),
               human_bytes(static_cast<double>(g.total_bytes)));
  const std::vector<std::string> on_gpu = operations_of(*gpu);
  fmt::print("      {} operations: {}\n", on_gpu.size(), join(on_gpu, ", "));
  return 0;
}

}  // namespace weft
