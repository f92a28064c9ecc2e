// `weft tokenize`: text, JSON lines or the generator's stories -> Megatron token files, or ids on standard output.
#pragma once

#include <cstdio>
#include <iostream>
#include <span>
#include <string>

namespace weft {

// `args` are those after "tokenize". The summary goes to `out`, progress to stderr. Returns the exit code; UserError
// for a wrong request.
int run_tokenize_command(std::span<const std::string> args, std::FILE* out = stdout, std::istream& in = std::cin);

}  // namespace weft
