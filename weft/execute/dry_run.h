// Runs a piece's code on tensors without memory: for devices that count (device/null), to price a plan and to learn
// which operations it needs.
#pragma once

#include "weft/device/device.h"
#include "weft/device/operations.h"
#include "weft/model/module.h"

namespace weft {

struct DryRun {
  // Of routed values: what is used on average, or all that there is room for.
  enum class Rows { in_use, all } rows = Rows::in_use;
  Store store = Store::add;  // how contributions are stored
};
void dry_run(const Module& module, const Piece& piece, Phase phase, const Operations& operations, Stream& stream,
             const DryRun& how = {});

}  // namespace weft
