// Whether a run fits into a device's memory: computed from its plan, before anything is allocated.
#pragma once

#include "weft/plan/memory.h"
#include "weft/train/session.h"

namespace weft {

// memory: of the plan.
MemoryNeed count_memory(Device& device, const SessionOptions& options, const Module& module, const Plan& plan,
                        MemoryPlan memory);

// UserError where the device has less free than a run needs: what it needs by kind, and which options would need at least
// 2 % less, or fit, and how much.
void require_memory(Device& device, const SessionOptions& options, const MemoryNeed& need);

}  // namespace weft
