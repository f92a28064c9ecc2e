// `weft grid`: explains a grid of ranks and its groups, as tables or as JSON.
#pragma once

#include <cstdio>
#include <span>
#include <string>

namespace weft {

// `args` are those after "grid". Returns the exit code; UserError for a wrong request.
int run_grid_command(std::span<const std::string> args, std::FILE* out);

}  // namespace weft
