// Whether a run fits into a device's memory: found out on paper, before anything is allocated.
#pragma once

#include "weft/plan/memory.h"
#include "weft/train/session.h"

namespace weft {

// UserError where the device has less free than the plan needs: what it needs by kind, and which options would need less,
// and how much.
void require_memory(const Device& device, const SessionOptions& options, const MemoryPlan& memory);

}  // namespace weft
