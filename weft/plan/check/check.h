// The checker: rejects a plan, naming the nodes, before it can run. check_plan sees the list of one rank, check_memory
// the places of its buffers; check_ranks.h compares ranks. Each is one walk over the uses.
#pragma once

#include <string>
#include <vector>

#include "weft/plan/memory.h"
#include "weft/plan/plan.h"

namespace weft {

struct PlanFault {
  std::string message;        // names buffers, nodes and ranks
  std::vector<NodeId> nodes;  // the ones at fault
  std::vector<RankId> ranks;  // of these nodes, if ranks were compared; otherwise empty
};

// Faults of one rank:
// - a node that is missing, appears twice, or has a phase that this kind of plan does not have;
// - a buffer read before it is written or before its last contribution;
// - an activation written twice, or written and never read;
// - `add`s that are missing, counted twice, out of the order of their numbers or out of the order of micro-batches;
// - a value shared by ranks that is not reduced, or reduced twice, before its last contribution, over the wrong group
//   or from the wrong row;
// - a gradient that the norm of all gradients does not count, or counts twice;
// - a gradient that no update uses; a weight updated without its gradient, twice, never, or read after its update;
// - step values used before they are computed;
// - a collective that sends or receives what its node does not use, or uses counts that were not exchanged or belong to
//   other rows;
// - the final norm not between the layers and the head;
// - work left to the next step that runs too late there, or needs data that is gone.
// `whose`: for messages, such as "rank 3".
std::vector<PlanFault> check_plan(const Plan& plan, const std::string& whose = {});

// Buffers outside the arena, used outside their lifetime, or in memory that another buffer still needs, given the order
// that lanes, edges and waits guarantee; a node that waits for a later one.
std::vector<PlanFault> check_memory(const Plan& plan, const MemoryPlan& memory, const std::string& whose = {});

// BugError listing the faults; `made_by`: the pass.
void require_valid(const Plan& plan, const std::string& made_by);
[[noreturn]] void throw_faults(const std::string& what, const std::vector<PlanFault>& faults);

}  // namespace weft
