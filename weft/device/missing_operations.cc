#include "weft/device/missing_operations.h"

#include "weft/device/operations.h"

namespace weft {

namespace {

bool has(const Operations& table, const std::string& operation) {
#define WEFT_HAS(name, Arguments) \
  if (operation == #name) return table.name != nullptr;
  WEFT_OPERATIONS(WEFT_HAS)
#undef WEFT_HAS
  return false;
}

}  // namespace

std::vector<std::string> operation_names() {
#define WEFT_NAME(name, Arguments) #name,
  return {WEFT_OPERATIONS(WEFT_NAME)};
#undef WEFT_NAME
}

std::vector<std::string> missing_operations(const Operations& table, std::span<const std::string> used) {
  std::vector<std::string> missing;
  for (const std::string& operation : used)
    if (!has(table, operation)) missing.push_back(operation);
  return missing;
}

}  // namespace weft
