// What `weft check` says of a pipeline: its stages' memory, and the time in which they wait.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "weft/base/json.h"
#include "weft/execute/step_plan.h"

namespace weft {

struct StageReport {
  struct Stage {
    std::vector<int> segments;
    std::int64_t parameters_bytes = 0, memory = 0, activations = 0;  // of a rank
    double busy = 0;                                                 // seconds of its compute lane
    std::array<double, lane_count> sent{};                           // bytes per step and rank, by lane
  };
  std::vector<Stage> stages;  // none: there is one stage
  OrderKind order = OrderKind::automatic;
  double step = 0;     // seconds
  double bubble = 0;   // share of the step in which the average stage does not compute
  double formula = 0;  // the same by the order's formula, for stages that all take as long as the average one
  std::optional<std::int64_t> woven;  // bytes of activations that the woven order takes in addition, on the worst stage
};

// plans: made with `options`, and priced. The plans must be valid.
StageReport stage_report(const LayoutPlans& plans, const StepOptions& options, const Cluster& cluster);
std::string to_text(const StageReport& report);  // "": one stage
Json to_json(const StageReport& report);

}  // namespace weft
