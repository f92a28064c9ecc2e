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

#define WEFT_NOTE(name, Arguments) \
  void note_##name(Stream& stream, const Arguments&) { static_cast<UsedOperations&>(stream).note(#name); }
WEFT_OPERATIONS(WEFT_NOTE)
#undef WEFT_NOTE

}  // namespace

const Operations& UsedOperations::table() {
  static const Operations notes = [] {
    Operations made;
#define WEFT_FILL(name, Arguments) made.name = &note_##name;
    WEFT_OPERATIONS(WEFT_FILL)
#undef WEFT_FILL
    return made;
  }();
  return notes;
}

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
