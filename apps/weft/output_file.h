// Files that a command writes when its work is done: whether it will be able to is found out before.
#pragma once

#include <string>
#include <vector>

#include "weft/train/flags.h"

namespace weft {

// UserError unless `file` is "" (not asked for) or its folder exists and can be written to.
void require_folder_of(const std::string& flag, const std::string& file);

// Says on stderr which of these outputs the command line asked for and do not come: "note: WHY, so nothing comes of
// --digest". What a file says is of the run that it configures.
void note_missing_outputs(const FlagTable& flags, const std::string& why, const std::vector<const char*>& outputs);

}  // namespace weft
