// Runs a node's operations on tensors without memory, for devices that only count (device/null): to price a plan and to
// find out which operations it needs.
#pragma once

#include "weft/device/device.h"
#include "weft/device/operations.h"
#include "weft/model/module.h"
#include "weft/plan/plan.h"

namespace weft {

struct DryRun {
  // Rows of routed values: those in use on average, or all that there is room for.
  enum class Rows { in_use, all } rows = Rows::in_use;
  Store store = Store::add;  // how contributions are stored
};
// Nodes that communicate, wait or release do nothing here.
void dry_run(const Module& module, const Plan& plan, const Node& node, const Operations& operations, Stream& stream,
             const DryRun& how = {});

// Names of the operations that the plan needs and the device lacks.
std::vector<std::string> missing_operations(const Module& module, const Plan& plan, const Device& device);

}  // namespace weft
