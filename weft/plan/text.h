// A plan as text, for reading and for golden files, and as JSON. Format: docs/plan_format.md.
#pragma once

#include <string>

#include "weft/base/json.h"
#include "weft/plan/memory.h"
#include "weft/plan/plan.h"

namespace weft {

std::string to_text(const Plan& plan, const MemoryPlan& memory);
Json to_json(const Plan& plan, const MemoryPlan& memory);

}  // namespace weft
