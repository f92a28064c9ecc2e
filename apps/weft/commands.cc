#include "apps/weft/commands.h"

#include <cstdio>

#include "apps/weft/grid_command.h"
#include "apps/weft/pattern_command.h"
#include "apps/weft/tokenize_command.h"

namespace weft {

std::vector<Command> commands() {
  return {
      {"train", run_train_command},
      {"plan", run_plan_command},
      {"check", run_check_command},
      {"verify", run_verify_command},
      {"probe", run_probe_command},
      {"convert", run_convert_command},
      {"inspect", run_inspect_command},
      {"tokenize", [](std::span<const std::string> words) { return run_tokenize_command(words); }},
      {"pattern", [](std::span<const std::string> words) { return run_pattern_command(words, stdout); }},
      {"grid", [](std::span<const std::string> words) { return run_grid_command(words, stdout); }},
      {"devices", run_devices_command},
  };
}

}  // namespace weft
