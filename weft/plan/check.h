// The checker: rejects a plan, naming the nodes, before it can run.
//
// For one rank: a buffer is read before it is written, or used again after its last contribution was consumed; an
// activation is written and never read, or read in a later step; `add`s out of the order of their numbers, missing or
// counted twice; a buffer with contributions read before the last one; a node whose uses are not those of its piece;
// the final norm not between the last layer and the head.
#pragma once

#include <string>
#include <vector>

#include "weft/plan/plan.h"

namespace weft {

struct PlanFault {
  std::string message;        // names buffers and nodes
  std::vector<NodeId> nodes;  // the ones at fault
};
std::vector<PlanFault> check_plan(const Plan& plan);

// BugError listing the faults; `made_by`: the pass.
void require_valid(const Plan& plan, const std::string& made_by);

}  // namespace weft
