// `weft devices`: what was built in, and what is there.
#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "apps/weft/commands.h"
#include "apps/weft/machine.h"
#include "weft/base/json.h"
#include "weft/base/text.h"
#include "weft/device/cpu/device.h"
#include "weft/device/operations.h"
#include "weft/train/flags.h"

namespace weft {

int run_devices_command(std::span<const std::string> words) {
  bool json = false;
  FlagTable flags("weft devices", "Says what this build and this machine can do.");
  flags.add("--json", json, "Prints JSON.");
  flags.apply(flags.scan(words));
  if (flags.help_wanted()) {
    fmt::print("{}", flags.help());
    return 0;
  }
  const CpuDevice cpu;
  std::vector<std::string> operations;
#define WEFT_HAS(name, Arguments) \
  if (cpu.operations().name) operations.push_back(#name);
  WEFT_OPERATIONS(WEFT_HAS)
#undef WEFT_HAS
  if (json) {
    const Json result = {{"devices",
                          {{{"name", "cpu"},
                            {"kind", cpu.name()},
                            {"cores", cores()},
                            {"free_bytes", cpu.free_bytes()},
                            {"instruction_set", name_of(cpu.isa())},
                            {"operations", operations}}}}};
    fmt::print("{}\n", result.dump());
    return 0;
  }
  fmt::print("cpu   {}\n", cpu.name());
  fmt::print("      {} cores, {} free\n", cores(), human_bytes(static_cast<double>(cpu.free_bytes())));
  fmt::print("      {} operations: {}\n", operations.size(), join(operations, ", "));
  fmt::print("cuda  not built in\n");
  return 0;
}

}  // namespace weft
