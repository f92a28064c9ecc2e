// Files that a command writes when its work is done. Whether it can is checked before.
#pragma once

#include <string>
#include <vector>

#include "weft/train/flags.h"

namespace weft {

// UserError unless `file` is "" (not asked for) or its folder exists and can be written to.
void require_folder_of(const std::string& flag, const std::string& file);

// Notes on stderr which of these outputs the command line asked for in vain: "note: WHY; ignored:
// --digest". What a file asks for is meant for the run that it configures.
void note_missing_outputs(const FlagTable& flags, const std::string& why, const std::vector<const char*>& outputs);

}  // namespace weft
