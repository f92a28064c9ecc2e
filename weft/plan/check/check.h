// The checker: rejects a plan, naming the nodes, before it can run. check_plan sees the list of one rank, check_memory
// where its buffers lie; check_ranks.h compares ranks. All are one walk over the uses.
#pragma once

#include <string>
#include <vector>

#include "weft/plan/memory.h"
#include "weft/plan/plan.h"

namespace weft {

struct PlanFault {
  std::string message;        // names buffers, nodes and ranks
  std::vector<NodeId> nodes;  // the ones at fault
  std::vector<RankId> ranks;  // of these nodes, where ranks were compared; else empty
};

// For one rank: a node that is missing, there twice or of a phase that its kind of plan does not have; a buffer read
// before it is written or before its last contribution; an activation written twice, or written and never read; `add`s
// out of the order of their numbers, missing, counted twice or not in the order of micro-batches; a value that ranks
// share not reduced, or reduced twice, before its last contribution, over another group or from another row than it
// says; a gradient no update uses, a weight updated twice, never, or read behind its update; step values out of the
// order in which they are computed; a collective that sends or receives what its node does not use, or goes by counts
// that were not exchanged or are not those of its rows; the final norm not between the layers and the head; work that
// was left to the next step and comes too late there, or needs what is gone.
// `whose`: for messages, such as "rank 3".
std::vector<PlanFault> check_plan(const Plan& plan, const std::string& whose = {});

// Where buffers lie: outside the arena, used outside their lifetime, or on memory that another buffer still needs,
// given the order that lanes, edges and waits guarantee; a node that waits for one behind it.
std::vector<PlanFault> check_memory(const Plan& plan, const MemoryPlan& memory, const std::string& whose = {});

// BugError listing the faults; `made_by`: the pass.
void require_valid(const Plan& plan, const std::string& made_by);
[[noreturn]] void throw_faults(const std::string& what, const std::vector<PlanFault>& faults);

}  // namespace weft
