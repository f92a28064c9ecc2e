#include "weft/base/error.h"

namespace weft {

void fail_check(const char* condition, const char* file, int line, const std::string& message) {
  throw BugError(fmt::format("{}:{}: {} does not hold: {} (this is a bug in Weft)", file, line, condition, message));
}

}  // namespace weft
