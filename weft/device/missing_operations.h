// Whether a device has what a plan asks for: found out when a plan is prepared, never in step 1.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "weft/device/operations.h"

namespace weft {

// All names of the table, in its order.
std::vector<std::string> operation_names();

// Of `used`, the names that the table has no entry for; also names that no table knows. In the order given.
std::vector<std::string> missing_operations(const Operations& table, std::span<const std::string> used);

}  // namespace weft
