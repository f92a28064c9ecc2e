// Runs a piece's code on tensors without memory: for devices that count (device/null), to price a plan and to learn
// which operations it needs. Routed values count with the rows that are used on average.
#pragma once

#include "weft/device/device.h"
#include "weft/device/operations.h"
#include "weft/model/module.h"

namespace weft {

void dry_run(const Module& module, const Piece& piece, Phase phase, const Operations& operations, Stream& stream);

}  // namespace weft
