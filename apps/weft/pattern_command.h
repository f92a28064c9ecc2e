// `weft pattern`: explains a layer pattern, as a drawing or as JSON.
#pragma once

#include <cstdio>
#include <span>
#include <string>

namespace weft {

// `args` are those after "pattern". Returns the exit code; UserError for a wrong request.
int run_pattern_command(std::span<const std::string> args, std::FILE* out);

}  // namespace weft
