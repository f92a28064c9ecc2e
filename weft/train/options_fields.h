// From fields to flags. The parts below do not know the command line: their messages name the fields of their own
// structs, in backquotes: "`experts.router.k` 9: must not exceed `experts.experts` 8". Whoever prints such a message
// to a user of the command line puts the flags in their place.
#pragma once

#include <span>
#include <string>
#include <string_view>

namespace weft {

struct FieldFlag {
  std::string_view field;  // as in ModelConfig, ModuleOptions or the arguments of a function: "experts.router.k"
  std::string_view flag;   // "--moe-router-topk"
};
std::span<const FieldFlag> field_flags();

// "--moe-router-topk 9: must not exceed --num-experts 8". Other text in backquotes stays as it is.
std::string with_flags(std::string_view message);

}  // namespace weft
