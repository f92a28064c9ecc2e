// Patterns of tokenizers, as PCRE2 takes them. Tokenizer files are written for two other engines, which differ from it, and
// from each other, in what \s, \w and \d are, in ^ and $, in {n,m}+ and in classes inside classes.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace weft {

enum class RegexDialect : std::uint8_t {
  oniguruma,  // Ruby's, of Hugging Face's tokenizers
  fancy,      // Rust's fancy-regex, of tiktoken
};

// UserError, without a place, for what PCRE2 has no equivalent of.
std::string pcre2_pattern(std::string_view pattern, RegexDialect dialect);

}  // namespace weft
