#include "apps/weft/explain_arguments.h"

#include <algorithm>

#include "weft/base/error.h"
#include "weft/base/text.h"

namespace weft {

ExplainArguments::ExplainArguments(std::string command, std::span<const std::string> args,
                                   std::vector<ExplainFlag> flags)
    : command_(std::move(command)) {
  flags.push_back({"--json", ExplainFlag::plain});
  flags.push_back({"--help", ExplainFlag::plain});
  for (std::size_t i = 0; i < args.size(); ++i) {
    const std::string& arg = args[i];
    if (arg == "-h") {
      given_.emplace_back("--help", "");
      continue;
    }
    if (arg.size() < 3 || arg[0] != '-' || arg[1] != '-' || arg[2] < 'a' || arg[2] > 'z') {
      positionals_.push_back(arg);
      continue;
    }
    const std::size_t equal = arg.find('=');
    const ExplainFlag& flag = known_flag(arg.substr(0, equal), flags);
    if (flag.kind != ExplainFlag::many_values && has(flag.name))
      throw UserError("{}: {} is given twice", command_, flag.name);
    std::string text;
    if (flag.kind == ExplainFlag::plain) {
      if (equal != std::string::npos) throw UserError("{}: {} takes no value", command_, flag.name);
    } else if (equal != std::string::npos) {
      text = arg.substr(equal + 1);
    } else if (++i < args.size()) {
      text = args[i];
    } else {
      throw UserError("{}: {} needs a value", command_, flag.name);
    }
    given_.emplace_back(flag.name, text);
  }
}

const ExplainFlag& ExplainArguments::known_flag(const std::string& name, std::span<const ExplainFlag> flags) const {
  std::vector<std::string> names;
  for (const ExplainFlag& flag : flags) {
    if (flag.name == name) return flag;
    names.push_back(flag.name);
  }
  const std::string near = nearest_name(name, names);
  throw UserError("{}: unknown flag {}{} (see {} --help)", command_, name,
                  near.empty() ? "" : fmt::format("; did you mean {}?", near), command_);
}

bool ExplainArguments::has(std::string_view flag) const { return !values(flag).empty(); }

std::vector<std::string> ExplainArguments::values(std::string_view flag) const {
  std::vector<std::string> texts;
  for (const auto& [name, text] : given_)
    if (name == flag) texts.push_back(text);
  return texts;
}

std::optional<std::string> ExplainArguments::value(std::string_view flag) const {
  const std::vector<std::string> texts = values(flag);
  return texts.empty() ? std::nullopt : std::optional(texts.front());
}

std::optional<int> ExplainArguments::integer(std::string_view flag) const {
  const std::optional<std::string> text = value(flag);
  if (!text) return std::nullopt;
  std::int64_t number = 0;
  if (!parse_int(*text, number) || number != static_cast<int>(number))
    throw UserError("{}: {} must be a whole number, not '{}'", command_, flag, *text);
  return static_cast<int>(number);
}

}  // namespace weft
