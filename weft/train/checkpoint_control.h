// When a run saves, what it goes on from, and when it ends before its last iteration.
#pragma once

#include <chrono>
#include <functional>
#include <optional>
#include <string>

#include "weft/train/exit_signals.h"
#include "weft/train/options.h"
#include "weft/train/save_load.h"

namespace weft {

// With several ranks, all of them make every call.
class CheckpointControl {
 public:
  // signals: null unless the run asks for them. Both outlive it.
  CheckpointControl(const TrainOptions& options, Session& session, const ExitSignals* signals);

  // Sets the weights that the run begins with, from --load, --hf or the seed, and returns where it stands. say: a line for
  // the log. UserError for a checkpoint that cannot be loaded.
  RunPosition begin(const std::function<void(const std::string&)>& say);
  // The last iteration of this run, as far as it is known before.
  std::int64_t last_iteration() const;
  // After the step that ended at `position`: saves if it is time to. Returns why the run should end now; "": go on.
  std::string after_step(const RunPosition& position, bool last, const std::function<void(const std::string&)>& say);
  // Saves unless it is saved already, or nobody asked for it.
  void save(const RunPosition& position, const std::function<void(const std::string&)>& say);

 private:
  std::string reason_to_stop() const;
  void keep_origin(const RunCheckpoint* checkpoint);

  const TrainOptions& options_;
  Session& session_;
  const ExitSignals* signals_;
  std::chrono::steady_clock::time_point began_ = std::chrono::steady_clock::now();
  RunPosition start_;
  std::optional<HuggingFaceOrigin> hugging_face_;
  SideFiles side_files_;
  std::int64_t saved_ = -1;  // the iteration of the last checkpoint
};

}  // namespace weft
