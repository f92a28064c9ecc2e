// Waits for counts: where ranks exchange rows whose counts only the device knows, the host must learn them.
//
// Contract. Communicators need counts on the host. Before the first exchange that uses a pair of counts (rows for each
// peer, rows from each peer), inserts a node on the same lane that copies both to the host and waits; all exchanges with
// that pair read the copies. So a micro-batch waits once per layer of experts. Does not change the order.
#pragma once

#include "weft/grid/layout.h"
#include "weft/plan/plan.h"

namespace weft {

Plan wait_for_counts(const Plan& plan, const Layout& layout);

}  // namespace weft
