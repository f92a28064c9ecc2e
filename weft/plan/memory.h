// Where every buffer is. A buffer lives from its first to its last use, in list order. Activations, scratch and
// gathered parameters share one arena by these lifetimes; everything else keeps its place for the whole step. A node takes
// over memory whose users are known to be done, if there is any, so that reuse rarely delays a lane. The arena
// begins with what the host writes before a step, inputs and step values that no node writes, so that one copy
// transfers all of it. The step values that nodes write follow.
#pragma once

#include <vector>

#include "weft/plan/edges.h"
#include "weft/plan/plan.h"

namespace weft {

struct Lifetime {
  std::int32_t first = -1, last = -1;  // node indices; -1: never used
};

// A node that takes over memory from nodes that it would not wait for otherwise.
struct MemoryReuse {
  NodeId node;
  LaneMarks after;
};

struct MemoryPlan {
  static constexpr std::int64_t alignment = 256;  // bytes, of every buffer

  // By buffer, in bytes from the beginning of the arena; -1: outside it. Weights, gradients and states are outside,
  // since several plans share them; so is what the host keeps (host_offsets).
  std::vector<std::int64_t> offset;
  std::vector<std::int64_t> host_offsets;  // by buffer, in bytes from the beginning of host memory; -1: not there
  std::int64_t host = 0;                   // bytes of host memory
  std::vector<Lifetime> lifetimes;
  std::int64_t arena = 0;                            // size: high-water mark of everything that has an offset
  std::int64_t inputs_end = 0, step_values_end = 0;  // bytes from the arena's beginning

  // The same by kind, in bytes. activations: high-water mark of what shares the arena by its lifetimes; step: inputs,
  // constants etc.
  std::int64_t weights = 0, gradients = 0, states = 0, activations = 0, step = 0;
  std::int64_t total() const { return weights + gradients + states + arena; }
  std::int64_t resident() const { return total() - activations; }  // in use all the time
  std::vector<std::int64_t> live;                                  // bytes of activations alive while node i runs
  std::vector<MemoryReuse> reuses;
};
MemoryPlan plan_memory(const Plan& plan);

// What every node waits for on other lanes, for its uses and for the memory it takes over. Executors and estimates use
// this and nothing else.
std::vector<LaneMarks> lane_waits(const Plan& plan, const MemoryPlan& memory);

}  // namespace weft
