// One line by which two runs can be compared.
#pragma once

#include <string>

#include "weft/train/session.h"

namespace weft {

// Hashes over all elements of all parameters, by identity and index in the logical parameter: equal for equal numbers in
// any layout. Weights are those that training works with (floats in bf16 models); states are both moments. With several
// ranks all of them call it, and all get it.
std::string weight_digest(Session& session);
std::string state_digest(Session& session);

}  // namespace weft
