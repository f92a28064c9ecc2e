// Writes `.metadata` (dcp_metadata.h).
#pragma once

#include <string>

#include "weft/checkpoint/torch_dist/dcp_metadata.h"

namespace weft {

// As PyTorch 2.2 and later read it. Classes and fields that only newer ones know are left out; those have defaults for
// them.
std::string pickle_of(const DcpMetadata& metadata);

}  // namespace weft
