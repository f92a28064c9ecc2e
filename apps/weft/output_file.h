// Files that a command writes when its work is done: whether it will be able to is found out before.
#pragma once

#include <string>

namespace weft {

// UserError unless `file` is "" (not asked for) or its folder exists.
void require_folder_of(const std::string& flag, const std::string& file);

}  // namespace weft
