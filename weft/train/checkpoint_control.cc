#include "weft/train/checkpoint_control.h"

#include <algorithm>

#include <nlohmann/json.hpp>
#include <unistd.h>

#include "weft/base/error.h"
#include "weft/base/text.h"
#include "weft/checkpoint/convert.h"
#include "weft/train/checkpoint_args.h"
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

// A long run must not fail at its end for a reason that was there at its beginning.
void require_folder_to_write(const std::string& dir) {
  std::error_code error;
  std::filesystem::create_directories(dir, error);
  if (!error && ::access(dir.c_str(), W_OK | X_OK) != 0) error = std::error_code(errno, std::generic_category());
  if (error) throw UserError("--save {}: {}; name a folder that can be made and written to", dir, error.message());
}

}  // namespace

CheckpointControl::CheckpointControl(const TrainOptions& options, Session& session, const ExitSignals* signals)
    : options_(options), session_(session), signals_(signals) {}

RunPosition CheckpointControl::begin(const std::function<void(const std::string&)>& say) {
  const CheckpointOptions& o = options_.checkpoint;
  if (!o.save.empty() && session_.options().layout.rank().value == 0) require_folder_to_write(o.save);
  const auto warn = [&](const std::string& text) {
    if (session_.options().layout.rank().value == 0) fmt::print(stderr, "warning: {}\n", text);
  };
  const bool optimizer = !o.finetune && !o.no_load_optim;
  std::unique_ptr<CheckpointReader> checkpoint;
  if (!o.load.empty()) {
    const std::optional<CheckpointPlace> place = find_checkpoint(
        o.load, o.ckpt_step > 0 ? std::optional(o.ckpt_step) : std::nullopt, o.load_last_complete, warn);
    const bool masters = optimizer && !o.load_main_params_from_ckpt;
    if (place)
      checkpoint = open_checkpoint(*place, session_.options().config,
                                   masters ? MasterWeights::where_wider : MasterWeights::never);
    require_same_iteration(session_.ranks(), checkpoint ? checkpoint->position().iteration : -1, o.load);
  }
  keep_origin(dynamic_cast<const RunCheckpoint*>(checkpoint.get()));  // other forms do not say
  if (!checkpoint) {
    const bool random = options_.model.hf.empty() || !has_weights(options_.model.hf);
    const std::string from = random ? "random weights" : options_.model.hf;
    if (!o.load.empty())
      say(fmt::format("there is no checkpoint in {}; the run starts from {}", o.load, from));
    else if (random && !options_.model.hf.empty())
      say(fmt::format("there are no weights in {}; the run starts from random ones (--seed {})", options_.model.hf,
                      options_.data.seed));
    load_parameters(session_, options_);
    return start_;
  }
  const RunPosition there = load_checkpoint(
      session_, *checkpoint, {optimizer, o.dist_ckpt_strictness, static_cast<std::uint64_t>(options_.data.seed), warn});
  if (!o.finetune) start_ = there;
  if (o.load == o.save && !o.finetune) saved_ = start_.iteration;
  say(fmt::format("loaded {}, iteration {}{}", checkpoint->folder().string(), there.iteration,
                  o.finetune        ? "; the run counts from 0 (--finetune)"
                  : o.no_load_optim ? ", without the optimizer's state"
                                    : ""));
  return start_;
}

// What the checkpoints of this run say of the Hugging Face folder that the model came from.
void CheckpointControl::keep_origin(const RunCheckpoint* checkpoint) {
  if (options_.checkpoint.save.empty() || session_.options().layout.rank().value != 0) return;
  if (const std::string& folder = options_.model.hf; !folder.empty()) {
    if (!has_weights(folder)) {
      const StoredType type = stored_type_of(session_.options().precision.compute);
      auto [model, side_files] = hugging_face_folder(folder, type, {});
      hugging_face_ = HuggingFaceOrigin{model.family, model.form, {}, type};
      for (const DiskTensor& tensor : model.tensors)
        if (tensor.type != type) hugging_face_->types[tensor.name] = tensor.type;
      side_files_ = std::move(side_files);
      return;
    }
    const std::unique_ptr<ModelSource> source = open_model(folder);
    hugging_face_ = origin_with_types(*source);
    side_files_ = source->side_files();
  } else if (checkpoint) {
    hugging_face_ = checkpoint->description().hugging_face;
    side_files_ = checkpoint->side_files();
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

std::string CheckpointControl::after_step(const RunPosition& position, bool last,
                                          const std::function<void(const std::string&)>& say) {
  const std::string reason = reason_to_stop();
  const std::int64_t interval = options_.checkpoint.save_interval;
  if (last || !reason.empty() || (interval > 0 && position.iteration % interval == 0)) save(position, say);
  return reason;
}

void CheckpointControl::save(const RunPosition& position, const std::function<void(const std::string&)>& say) {
  const CheckpointOptions& o = options_.checkpoint;
  if (o.save.empty() || saved_ == position.iteration) return;
  const auto begin = std::chrono::steady_clock::now();
  save_checkpoint(session_, {o.save, !o.no_save_optim, o.keep_last, o.save_retain_interval, hugging_face_, side_files_},
                  position, flags_of_run(options_));
  saved_ = position.iteration;
  say(fmt::format("saved {} in {}", checkpoint_folder(o.save, position.iteration).string(),
                  human_seconds(std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count())));
}

}  // namespace weft
