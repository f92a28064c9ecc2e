// Whether a device has what a plan asks for: found out when a plan is prepared, never in step 1.
#pragma once

#include <set>
#include <span>
#include <string>
#include <vector>

#include "weft/device/device.h"
#include "weft/device/operations.h"

namespace weft {

// A stream that runs nothing and notes which operations were asked of it, through a table of its own.
class UsedOperations : public Stream {
 public:
  static const Operations& table();
  void synchronize() override {}
  void note(const char* operation) { names_.insert(operation); }
  std::vector<std::string> names() const { return {names_.begin(), names_.end()}; }  // each once

 private:
  std::set<std::string> names_;
};

// All names of the table, in its order.
std::vector<std::string> operation_names();

// Of `used`, the names that the table has no entry for; also names that no table knows. In the order given.
std::vector<std::string> missing_operations(const Operations& table, std::span<const std::string> used);

}  // namespace weft
