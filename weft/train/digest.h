// One line that two runs can be compared by.
#pragma once

#include <string>

#include "weft/train/session.h"

namespace weft {

// A hash over all weights as trained with (floats in bf16 models), as doubles, in the order of their
// identities: equal for equal weights in any layout. With several ranks all of them call it, and all get it.
std::string weight_digest(Session& session);

}  // namespace weft
