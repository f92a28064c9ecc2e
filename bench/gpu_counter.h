// The energy and clock of a GPU, by NVML, which is loaded when it is asked for.
#pragma once

#include <optional>

#include <dlfcn.h>

#include "weft/base/error.h"

namespace weft {

// Of the first GPU. A GPU that does not count its energy, or a machine without NVML, is a RunError.
class GpuEnergy {
 public:
  GpuEnergy() {
    void* library = dlopen("libnvidia-ml.so.1", RTLD_NOW);
    if (library == nullptr) throw RunError("there is no libnvidia-ml.so.1, which knows the GPU's energy");
    const auto find = [&](const char* name, auto& function) {
      function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(dlsym(library, name));
      if (function == nullptr) throw RunError("libnvidia-ml.so.1 has no {}", name);
    };
    int (*init)() = nullptr;
    int (*device)(unsigned, void**) = nullptr;
    find("nvmlInit_v2", init);
    find("nvmlDeviceGetHandleByIndex_v2", device);
    find("nvmlDeviceGetTotalEnergyConsumption", total_);
    find("nvmlDeviceGetClockInfo", clock_);
    if (init() != 0 || device(0, &device_) != 0) throw RunError("NVML does not know the GPU");
  }
  static std::optional<GpuEnergy> if_counted() {
    try {
      GpuEnergy energy;
      energy.joules();
      return energy;
    } catch (const RunError&) {
      return std::nullopt;
    }
  }
  double joules() const {
    unsigned long long millijoules = 0;
    if (total_(device_, &millijoules) != 0) throw RunError("this GPU does not count its energy");
    return static_cast<double>(millijoules) * 1e-3;
  }
  unsigned clock() const {  // MHz, now
    unsigned megahertz = 0;
    constexpr int of_multiprocessors = 1;
    clock_(device_, of_multiprocessors, &megahertz);
    return megahertz;
  }

 private:
  int (*total_)(void*, unsigned long long*) = nullptr;
  int (*clock_)(void*, int, unsigned*) = nullptr;
  void* device_ = nullptr;
};

}  // namespace weft
