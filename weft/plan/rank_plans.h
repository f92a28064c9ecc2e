// The plans of all ranks of a run. Ranks with equal plans share one entry.
#pragma once

#include <vector>

#include "weft/grid/layout.h"
#include "weft/plan/memory.h"
#include "weft/plan/plan.h"

namespace weft {

struct RankPlans {
  struct Entry {
    Entry(const Plan& own_plan, const MemoryPlan& own_memory) : plan(&own_plan), memory(&own_memory) {}
    // Buffers have no place: nothing waits for memory, and memory is not checked.
    static Entry without_memory(const Plan& own_plan) { return Entry(&own_plan); }

    const Plan* plan;
    const MemoryPlan* memory;  // null: without

   private:
    explicit Entry(const Plan* own_plan) : plan(own_plan), memory(nullptr) {}
  };
  std::vector<Entry> plans;           // the distinct ones
  std::vector<std::int32_t> plan_of;  // by rank: its index in `plans`
  // By GroupId: the groups of that id. A rank is in one of them, or in none.
  std::vector<std::vector<RankGroup>> groups;
};

// All ranks of the layout run this plan.
RankPlans same_on_all_ranks(const Layout& layout, const Plan& plan, const MemoryPlan& memory);

}  // namespace weft
