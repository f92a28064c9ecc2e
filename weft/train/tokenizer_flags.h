// The flags that choose a tokenizer, the same for all commands.
#pragma once

#include "weft/data/tokenizer_choice.h"
#include "weft/train/flags.h"

namespace weft {

// --tokenizer-type and what belongs to it. Returns the flag of the type, for its default.
Flag& add_tokenizer_flags(FlagTable& flags, TokenizerChoice& choice);
// Flags that do not go together; ByteTokenizer where nothing else is asked for. UserError.
void check_tokenizer_flags(const FlagTable& flags, TokenizerChoice& choice);
// The same rules, as messages for a list of problems; "" if all is well.
std::string tokenizer_flags_problem(const TokenizerChoice& choice);

}  // namespace weft
