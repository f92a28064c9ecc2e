// weft: one executable, one subcommand per job.
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <exception>
#include <optional>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "apps/weft/commands.h"
#include "apps/weft/file_signals.h"
#include "apps/weft/interrupts.h"
#include "weft/base/error.h"
#include "weft/base/text.h"
#include "weft/train/options_fields.h"

namespace {

constexpr const char* usage =
    "weft COMMAND [OPTIONS]\n"
    "\n"
    "  train      train a model\n"
    "  plan       print the plan of a training step\n"
    "  check      build and check a plan; report parameters, memory and work before anything runs\n"
    "  verify     run a layout and the serial single-rank oracle side by side, compare every number\n"
    "  probe      load a model, run forward and backward on given tokens, write logits and gradients\n"
    "  convert    a model in another format: Hugging Face, Weft, Megatron\n"
    "  inspect    what a checkpoint holds; where two of them differ\n"
    "  tokenize   text to token files\n"
    "  pattern    explain a layer pattern\n"
    "  grid       explain a grid of ranks\n"
    "  devices    what this build and this machine can do\n"
    "\n"
    "weft COMMAND --help lists its options. Exit codes: 0 done, 1 failed while running, 2 the request was wrong.\n";

int dispatch(const std::vector<std::string>& words) {
  using namespace weft;
  if (words.empty() || words[0] == "--help" || words[0] == "-h" || words[0] == "help") {
    fmt::print(words.empty() ? stderr : stdout, "{}", usage);
    return words.empty() ? 2 : 0;
  }
  const std::span<const std::string> rest = std::span(words).subspan(1);
  for (const Command& command : commands())
    if (command.name == words[0]) {
      std::optional<Interrupts> interrupts;
      if (command.name != "train") interrupts.emplace();  // train also has other ways to end
      return command.run(rest);
    }
  std::vector<std::string> names;
  for (const Command& command : commands()) names.push_back(command.name);
  const std::string near = nearest_name(words[0], names);
  throw UserError("there is no command '{}'; {}`weft --help` lists all", words[0],
                  near.empty() ? "" : "did you mean '" + near + "'? ");
}

// What was printed has arrived: it may have been all that the command is for.
void flush_output() {
  const bool lost_before = std::ferror(stdout) != 0;
  if (std::fflush(stdout) != 0 || lost_before)
    throw weft::RunError("not all of the output could be written ({}): look where it goes",
                         lost_before ? "some of it failed earlier" : std::strerror(errno));
}

}  // namespace

int main(int argc, char** argv) {
  weft::report_file_signals();
  try {
    const int code = dispatch({argv + 1, argv + argc});
    flush_output();
    return code;
  } catch (const weft::UserError& e) {
    fmt::print(stderr, "weft: {}\n", weft::with_flags(e.what()));
    return 2;
  } catch (const std::exception& e) {
    fmt::print(stderr, "weft: {}\n", weft::with_flags(e.what()));
    return 1;
  }
}
