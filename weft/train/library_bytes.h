// What libraries hold of memory beside a plan's, measured.
#pragma once

#include "weft/train/session.h"

namespace weft {

// Bytes: the growth of the process (of a GPU's used memory) while one micro-batch runs forward and backward for the first
// time, on zero tokens. Leaves no trace in weights or states.
std::int64_t measure_library_bytes(Session& session);

}  // namespace weft
