// Scratch memory of a plan's streams, in addition to its tensors: found by a dry run of the plan.
#pragma once

#include <array>

#include "weft/device/device.h"
#include "weft/model/module.h"
#include "weft/plan/plan.h"

namespace weft {

struct StreamMemory {
  std::array<WorkingMemory, lane_count> lanes;  // of the stream of each lane that has one
  std::size_t total() const;
};

// lanes: each lane that the plan uses has its own stream; otherwise the compute lane's stream runs everything. That one
// always has room for every node: late updates and evaluations run on it.
StreamMemory stream_memory(const Module& module, const Plan& plan, Device& device, bool lanes);

}  // namespace weft
