// The checker: rejects a plan, naming the nodes, before it can run.
//
// For one rank: a buffer is read before it is written or before its last contribution; an activation is written twice, or
// written and never read; `add`s out of the order of their numbers, missing or counted twice; a value that ranks share is
// not reduced, or reduced twice, or before its last contribution; a gradient no update uses; a weight read after its
// update; step values out of the order in which they are computed; the final norm not between the layers and the head.
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
