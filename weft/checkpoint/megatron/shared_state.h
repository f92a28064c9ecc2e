// The state that all ranks of a Megatron run share, for a checkpoint that Weft writes: args, how far the run has come, the
// optimizer's groups and the schedule.
#pragma once

#include <optional>

#include <nlohmann/json.hpp>

#include "weft/base/json.h"
#include "weft/checkpoint/run_position.h"
#include "weft/checkpoint/torch_dist/python_value.h"

namespace weft {

struct SharedState {
  Json model_args = Json::object();  // megatron_model_args
  Json flags = Json::object();       // of the run, as a checkpoint of Weft's has them: text, by the flag's name
  std::optional<RunPosition> position = {};
  bool bf16 = false;
  bool optimizer = false;  // its state is there
  Json description = {};   // of the model, for Weft
};
PythonValue shared_state(const SharedState& state);

}  // namespace weft
