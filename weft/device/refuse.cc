#include "weft/device/refuse.h"

#include "weft/base/error.h"

namespace weft {

void refuse(const char* operation, const char* why) { throw BugError(fmt::format("{}: {}", operation, why)); }

}  // namespace weft
