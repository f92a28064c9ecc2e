#include "weft/train/checkpoint_control.h"

#include <algorithm>
#include <numeric>
#include <span>

#include <nlohmann/json.hpp>
#include <unistd.h>

#include "weft/base/error.h"
#include "weft/base/text.h"
#include "weft/checkpoint/convert.h"
#include "weft/checkpoint/new_folder.h"
#include "weft/train/checkpoint_args.h"
#include "weft/train/last_complete.h"
#include "weft/train/same_run.h"
#include "weft/train/trainer.h"

namespace weft {
namespace {

// All ranks must go on from the same checkpoint.
void require_same_iteration(const RankExchange& ranks, std::int64_t own, const std::string& dir) {
  const std::vector<std::int64_t> all = ranks.gather(std::span(&own, 1));
  const auto text = [](std::int64_t iteration) {
    return iteration < 0 ? std::string("no checkpoint") : fmt::format("the checkpoint of iteration {}", iteration);
  };
  for (std::size_t r = 1; r < all.size(); ++r)
    if (all[r] != all[0])
      throw UserError("--load {}: rank {} finds {} and rank 0 {}; all ranks must see the same folder", dir, r,
                      text(all[r]), text(all[0]));
}

// A title, and a name per line.
std::string listed(const std::string& title, const std::vector<std::string>& names) {
  return names.empty() ? title : fmt::format("{}:\n  {}", title, join(names, "\n  "));
}

// A long run must not fail at its end for a reason that was there at its beginning.
void require_folder_to_write(const std::string& dir) {
  std::error_code error;
  std::filesystem::create_directories(dir, error);
  if (!error && ::access(dir.c_str(), W_OK | X_OK) != 0) error = std::error_code(errno, std::generic_category());
  if (error) throw UserError("--save {}: {}; name a folder that can be made and written to", dir, error.message());
}

}  // namespace

CheckpointControl::CheckpointControl(const TrainOptions& options, Session& session, const ExitSignals* signals)
    : options_(options),
      session_(session),
      signals_(signals),
      saver_(session, {options.checkpoint.save, !options.checkpoint.no_save_optim, options.checkpoint.keep_last,
                       options.checkpoint.save_retain_interval}) {}

std::optional<CheckpointPlace> CheckpointControl::find(const Warn& warn) const {
  const CheckpointOptions& o = options_.checkpoint;
  if (o.load_last_complete) return find_last_complete(session_.ranks(), session_.options().layout.rank(), o.load, warn);
  return find_checkpoint(o.load, o.ckpt_step > 0 ? std::optional(o.ckpt_step) : std::nullopt, WhichCheckpoint::tracked,
                         warn);
}

RunPosition CheckpointControl::begin(const Say& say) {
  const CheckpointOptions& o = options_.checkpoint;
  if (saves()) {
    const bool first = session_.options().layout.rank().value == 0;
    if (first) require_folder_to_write(o.save);
    const std::int64_t own = saver_.bytes();
    const std::vector<std::int64_t> all = session_.ranks().gather(std::span(&own, 1));
    if (first) require_free_space("--save", o.save, std::accumulate(all.begin(), all.end(), std::int64_t{0}));
  }
  bool warned = false;
  const auto warn = [&](const std::string& text) {
    warned = true;
    if (session_.options().layout.rank().value == 0) fmt::print(stderr, "warning: {}\n", text);
  };
  const bool optimizer = !o.finetune && !o.no_load_optim;
  // Weights that several ranks hold are compared as they are loaded (require_same_weights), parts that they divide are not.
  const bool divided = session_.module().sharding != ShardingStrategy::no_shard;
  std::unique_ptr<CheckpointReader> checkpoint;
  if (!o.load.empty()) {
    const std::optional<CheckpointPlace> place = find(warn);
    const bool masters = optimizer && !o.load_main_params_from_ckpt;
    if (place)
      checkpoint = open_checkpoint(*place, session_.options().config,
                                   masters ? MasterWeights::where_wider : MasterWeights::never);
    require_same_iteration(session_.ranks(), checkpoint ? checkpoint->position().iteration : -1, o.load);
  }
  keep_origin(dynamic_cast<const RunCheckpoint*>(checkpoint.get()));  // other forms do not record it
  if (!checkpoint) {
    const bool random = options_.model.hf.empty() || !has_weights(options_.model.hf);
    const std::string from = random ? "random weights" : options_.model.hf;
    if (!o.load.empty())
      say(fmt::format("{} checkpoint in {}{}; the run starts from {}", warned ? "no" : "there is no", o.load,
                      warned ? " is loaded" : "", from));
    else if (random && !options_.model.hf.empty())
      say(fmt::format("there are no weights in {}; the run starts from random ones (--seed {})", options_.model.hf,
                      options_.data.seed));
    load_parameters(session_, options_);
    if (!random && divided) require_same_files(session_.ranks(), options_.model.hf);
    return start_;
  }
  LoadOptions load{optimizer, o.dist_ckpt_strictness, static_cast<std::uint64_t>(options_.data.seed), warn};
  load.differ = [&](const LoadDifferences& differences) {
    const std::string where = checkpoint->folder().string();
    say(listed(
        fmt::format("{}: {} parameters are not in the checkpoint (unexpected)", where, differences.unexpected.size()),
        differences.unexpected));
    if (differences.missing)
      say(listed(fmt::format("{}: {} tensors of the checkpoint are not of this model (missing)", where,
                             differences.missing->size()),
                 *differences.missing));
    differences_ = differences;
  };
  const RunPosition there = load_checkpoint(session_, *checkpoint, load);
  if (divided) require_same_files(session_.ranks(), checkpoint->folder());
  if (!o.finetune) start_ = there;
  if (o.load == o.save && !o.finetune) saved_ = start_.iteration;
  say(fmt::format("loaded {}, iteration {}{}", checkpoint->folder().string(), there.iteration,
                  o.finetune        ? "; the run counts from 0 (--finetune)"
                  : o.no_load_optim ? ", without the optimizer's state"
                                    : ""));
  return start_;
}

void CheckpointControl::write_differences(MetricsWriter& metrics) const {
  if (!differences_) return;
  std::vector<Metric> line = {{"iteration", start_.iteration}, {"unexpected", differences_->unexpected}};
  if (differences_->missing) line.push_back({"missing", *differences_->missing});
  metrics.write(line);
}

// What the checkpoints of this run record of the Hugging Face folder that the model came from.
void CheckpointControl::keep_origin(const RunCheckpoint* checkpoint) {
  if (!saves() || session_.options().layout.rank().value != 0) return;
  if (const std::string& folder = options_.model.hf; !folder.empty()) {
    if (!has_weights(folder)) {
      const StoredType type = stored_type_of(session_.options().precision.compute);
      auto [model, side_files] = hugging_face_folder(folder, type, {});
      HuggingFaceOrigin origin{model.family, model.form, {}, type};
      for (const DiskTensor& tensor : model.tensors)
        if (tensor.type != type) origin.types[tensor.name] = tensor.type;
      return saver_.set_origin(origin, std::move(side_files));
    }
    const std::unique_ptr<ModelSource> source = open_model(folder);
    saver_.set_origin(origin_with_types(*source), source->side_files());
  } else if (checkpoint) {
    saver_.set_origin(checkpoint->description().hugging_face, checkpoint->side_files());
  }
}

std::int64_t CheckpointControl::last_iteration() const {
  const std::int64_t every = options_.checkpoint.exit_interval, last = options_.batch.train_iters;
  return every > 0 ? std::min(last, (start_.iteration / every + 1) * every) : last;
}

std::string CheckpointControl::reason_to_stop() const {
  const double minutes = options_.checkpoint.exit_duration_in_mins;
  if (!signals_ && minutes <= 0) return "";
  const double passed = std::chrono::duration<double>(std::chrono::steady_clock::now() - began_).count() / 60;
  const std::int64_t own[] = {signals_ ? signals_->take() : 0, minutes > 0 && passed >= minutes};
  const std::vector<std::int64_t> all = session_.ranks().gather(own);
  std::int64_t signal = 0, late = 0;
  for (std::size_t i = 0; i < all.size(); i += 2) {
    signal = std::max(signal, all[i]);
    late = std::max(late, all[i + 1]);
  }
  if (signal != 0) return signal == SIGINT ? "SIGINT" : "SIGTERM";
  return late != 0 ? fmt::format("--exit-duration-in-mins {}", minutes) : "";
}

void CheckpointControl::require_all_ready(const std::exception_ptr& error, const RunPosition& position,
                                          const Say& say) {
  // Without --save there is nothing to agree on.
  std::int64_t failed = error != nullptr;
  if (saves()) {
    const std::vector<std::int64_t> all = session_.ranks().gather(std::span(&failed, 1));
    failed = *std::max_element(all.begin(), all.end());
    if (failed != 0) save_before_end(position, say);
  }
  if (error) std::rethrow_exception(error);
  if (failed == 0) return;
  session_.ranks().wait_for_all();  // ends with that rank's error
  throw RunError("another rank cannot go on");
}

StepResult CheckpointControl::step(std::span<const MicroBatch> batches, double learning_rate, double decay,
                                   const RunPosition& position, const Say& say) {
  try {
    return session_.step(batches, learning_rate, decay);
  } catch (const std::exception&) {
    if (saves() && session_.kept_by_failed_step()) save_before_end(position, say);
    throw;
  }
}

void CheckpointControl::save_before_end(const RunPosition& position, const Say& say) {
  if (position.iteration == start_.iteration) return;  // no step of this run would be lost
  try {
    save(position, say);
  } catch (const std::exception& error) {
    fmt::print(stderr, "warning: the state after iteration {} is lost: {}\n", position.iteration, error.what());
  }
}

std::string CheckpointControl::after_step(const RunPosition& position, bool last, const Say& say) {
  tell_saved(saver_.poll(), say);
  const std::string reason = reason_to_stop();
  const std::int64_t interval = options_.checkpoint.save_interval;
  if (last || !reason.empty())
    save(position, say);
  else if (interval > 0 && position.iteration % interval == 0)
    options_.checkpoint.async_save ? begin_save(position, say) : save(position, say);
  return reason;
}

void CheckpointControl::save(const RunPosition& position, const Say& say) {
  if (!saves()) return;
  tell_saved(saver_.finish(), say);
  if (saved_ == position.iteration) return;
  save_began_ = std::chrono::steady_clock::now();
  saver_.save(position, flags_of_run(options_));
  saved_ = position.iteration;
  tell_saved(position.iteration, say);
}

void CheckpointControl::begin_save(const RunPosition& position, const Say& say) {
  if (!saves() || saved_ == position.iteration) return;
  tell_saved(saver_.finish(), say);
  save_began_ = std::chrono::steady_clock::now();
  saver_.begin(position, flags_of_run(options_));
  saved_ = position.iteration;
}

void CheckpointControl::tell_saved(std::optional<std::int64_t> iteration, const Say& say) const {
  if (!iteration) return;
  say(fmt::format(
      "saved {} in {}", checkpoint_folder(options_.checkpoint.save, *iteration).string(),
      human_seconds(std::chrono::duration<double>(std::chrono::steady_clock::now() - save_began_).count())));
}

}  // namespace weft
