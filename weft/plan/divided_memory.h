// What parameters that are divided over ranks take of a rank's memory.
#pragma once

#include "weft/plan/memory.h"
#include "weft/plan/plan.h"

namespace weft {

struct DividedMemory {
  // Bytes of this rank's parts: of all weights, gradients and states, those that belong to divided tensors.
  std::int64_t weights = 0, gradients = 0, states = 0;
  // Whole weights, where most of them are there at a time: bytes, and to how many units they belong. A unit that the forward
  // pass of one micro-batch and the backward pass of another have gathered counts twice.
  std::int64_t gathered = 0;
  int units = 0;
  // Bytes of parts that instances of the optimizer have gathered from each other, for the whole step.
  std::int64_t of_instances = 0;
  // Bytes of gradients that are summed up here or have just been reduced, where there are most of them at a time.
  std::int64_t in_flight = 0;
};
DividedMemory divided_memory(const Plan& plan, const MemoryPlan& memory);

}  // namespace weft
