// When a run saves, what it goes on from, and when it ends before its last iteration.
#pragma once

#include <chrono>
#include <exception>
#include <functional>
#include <optional>
#include <span>
#include <string>

#include "weft/train/checkpoint_saver.h"
#include "weft/train/exit_signals.h"
#include "weft/train/metrics_writer.h"
#include "weft/train/options.h"
#include "weft/train/save_load.h"

namespace weft {

// With several ranks, all of them make every call. Say: takes a line for the log.
class CheckpointControl {
 public:
  using Say = std::function<void(const std::string&)>;

  // signals: null unless the run asks for them. Both outlive it.
  CheckpointControl(const TrainOptions& options, Session& session, const ExitSignals* signals);

  // Sets the weights that the run begins with, from --load, --hf or the seed, and returns its position. say: a line for
  // the log. UserError for a checkpoint that cannot be loaded.
  RunPosition begin(const Say& say);
  // A line of what checkpoint and model do not both have, where --dist-ckpt-strictness return_* asks for it.
  void write_differences(MetricsWriter& metrics) const;
  // The last iteration of this run, as far as it is known before.
  std::int64_t last_iteration() const;
  bool saves() const { return !options_.checkpoint.save.empty(); }
  // Before a step, or anything else that ranks do together: `error` keeps this rank from it; null: nothing does. Where it is
  // so for any rank, all of them save the state of `position`, and this throws.
  void require_all_ready(const std::exception_ptr& error, const RunPosition& position, const Say& say);
  // A step, from the state of `position`. If it fails and has left that as it was, the state is saved first.
  StepResult step(std::span<const MicroBatch> batches, double learning_rate, double decay, const RunPosition& position,
                  const Say& say);
  // For a run that ends with an error that all ranks have: saves its state. It does not throw; a failure is a warning
  // besides the error.
  void save_before_end(const RunPosition& position, const Say& say);
  // After the step that ended at `position`: saves if it is time to. Returns why the run should end now; "": go on.
  std::string after_step(const RunPosition& position, bool last, const Say& say);
  // Whether --save has a complete checkpoint of that iteration, of this run.
  bool has_saved(std::int64_t iteration) const { return saves() && saved_ == iteration && !saver_.pending(); }

 private:
  std::optional<CheckpointPlace> find(const Warn& warn) const;
  std::string reason_to_stop() const;
  void keep_origin(const RunCheckpoint* checkpoint);
  // Unless it is saved already, or not to be saved. Returns when the checkpoint is complete.
  void save(const RunPosition& position, const Say& say);
  void begin_save(const RunPosition& position, const Say& say);
  void tell_saved(std::optional<std::int64_t> iteration, const Say& say) const;

  const TrainOptions& options_;
  Session& session_;
  const ExitSignals* signals_;
  CheckpointSaver saver_;
  std::chrono::steady_clock::time_point began_ = std::chrono::steady_clock::now();
  RunPosition start_;
  std::optional<LoadDifferences> differences_;
  std::int64_t saved_ = -1;  // the iteration of the last checkpoint
  std::chrono::steady_clock::time_point save_began_;
};

}  // namespace weft
