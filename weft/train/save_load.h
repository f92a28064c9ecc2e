// Goes on from a checkpoint, in any layout.
#pragma once

#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "weft/checkpoint/find_checkpoint.h"
#include "weft/checkpoint/run_checkpoint.h"
#include "weft/checkpoint/run_position.h"
#include "weft/train/session.h"
#include "weft/train/strictness.h"

namespace weft {

// What the checkpoint and the model do not both have, by name.
struct LoadDifferences {
  std::vector<std::string> unexpected;              // parameters that it lacks
  std::optional<std::vector<std::string>> missing;  // its tensors that are not of the model; absent: nobody asked
};

struct LoadOptions {
  bool optimizer = true;  // its state, too
  Strictness strictness = Strictness::assume_ok_unexpected;
  std::uint64_t seed = 0;  // of initial values
  Warn warn = {};
  // Gets what is to be returned, before anything is changed; called for Strictness::return_*.
  std::function<void(const LoadDifferences&)> differ = {};
};

// Sets weights and, if asked for, the optimizer's state; each rank reads what it holds. Returns the position of the run; a model
// that no run has saved begins anew. UserError for what the checkpoint lacks or has in another shape, before anything is
// changed.
RunPosition load_checkpoint(Session& session, const CheckpointReader& checkpoint, const LoadOptions& options = {});

}  // namespace weft
