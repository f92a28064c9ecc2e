// What it costs to gather divided weights before they are used: every bound on that, with its memory and its time.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "weft/base/json.h"
#include "weft/plan/build.h"
#include "weft/plan/simulate/estimate.h"

namespace weft {

struct PrefetchCost {
  double mean_units = 0;      // gathered ahead at most; 0: two units of each direction are gathered at a time
  std::int64_t elements = 0;  // the same in elements
  bool by_piece = true;       // gathers what a piece uses; otherwise all that its unit uses
  bool chosen = false;        // what the step does
  std::int64_t gathered = 0;  // bytes of whole weights, most at a time
  int units = 0;              // that they belong to
  std::int64_t memory = 0;    // bytes of the step in all
  double seconds = 0;         // of the step, estimated
};

// Of a step of `module` that is planned as `asked`, one after the other. None where a step gathers every weight once: then
// nothing bounds it.
std::vector<PrefetchCost> prefetch_costs(const Module& module, const PlanOptions& asked, const Pricer& pricer,
                                         const Cluster& cluster);
std::string to_text(std::span<const PrefetchCost> costs);  // a table, with "*" where it is chosen; "" for none
Json to_json(std::span<const PrefetchCost> costs);

}  // namespace weft
