// SentencePiece's precompiled rules of normalisation: the longest text that a rule has is replaced. They are a "double
// array", a tree whose nodes are found by exclusive or, and the replacements, each with a zero at its end.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace weft {

class PrecompiledRules {
 public:
  PrecompiledRules() = default;
  // UserError "WHERE: ..." for bytes that cannot be such rules.
  PrecompiledRules(std::string_view bytes, const std::string& where);

  struct Found {
    std::size_t size = 0;  // bytes that are replaced; 0: no rule applies
    std::string_view by;
  };
  // The rule with the longest text that `text`, which is UTF-8, begins with.
  Found longest(std::string_view text) const;

 private:
  std::vector<std::uint32_t> units_;
  std::string replacements_;
};

}  // namespace weft
