// The few arguments of `weft pattern` and `weft grid`: flags that begin with "--" and a small letter (so that "-E" and
// "--" are patterns), as "--flag value" or "--flag=value". UserError for what is unknown, missing or given twice.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace weft {

struct ExplainFlag {
  enum Kind { plain, one_value, many_values };
  std::string name;  // with the dashes
  Kind kind = one_value;
};

class ExplainArguments {
 public:
  // `command` begins every message: "weft pattern". --json and --help (-h) are always known.
  ExplainArguments(std::string command, std::span<const std::string> args, std::vector<ExplainFlag> flags);

  bool has(std::string_view flag) const;
  std::optional<std::string> value(std::string_view flag) const;
  std::optional<int> integer(std::string_view flag) const;
  std::vector<std::string> values(std::string_view flag) const;
  const std::vector<std::string>& positionals() const { return positionals_; }

 private:
  const ExplainFlag& known_flag(const std::string& name, std::span<const ExplainFlag> flags) const;

  std::string command_;
  std::vector<std::pair<std::string, std::string>> given_;
  std::vector<std::string> positionals_;
};

}  // namespace weft
