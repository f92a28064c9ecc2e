// The subcommands. Each takes the words after its name and returns the exit code; UserError for a wrong request.
#pragma once

#include <functional>
#include <span>
#include <string>
#include <vector>

namespace weft {

struct Command {
  std::string name;
  std::function<int(std::span<const std::string>)> run;
};
std::vector<Command> commands();

int run_train_command(std::span<const std::string> words);
int run_plan_command(std::span<const std::string> words);
int run_check_command(std::span<const std::string> words);
int run_probe_command(std::span<const std::string> words);
int run_convert_command(std::span<const std::string> words);
int run_inspect_command(std::span<const std::string> words);
int run_verify_command(std::span<const std::string> words);
int run_devices_command(std::span<const std::string> words);

}  // namespace weft
