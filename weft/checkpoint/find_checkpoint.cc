#include "weft/checkpoint/find_checkpoint.h"

#include <algorithm>

#include <nlohmann/json.hpp>

#include "weft/base/error.h"
#include "weft/base/file.h"
#include "weft/base/text.h"
#include "weft/checkpoint/run_checkpoint.h"

namespace weft {
namespace {

namespace fs = std::filesystem;

// Ascending.
std::vector<std::int64_t> iterations_in(const fs::path& dir) {
  std::vector<std::int64_t> iterations;
  std::error_code error;
  for (fs::directory_iterator at(dir, error), end; !error && at != end; at.increment(error)) {
    const std::string name = at->path().filename().string();
    std::int64_t iteration = 0;
    if (name.starts_with("iter_") && parse_int(std::string_view(name).substr(5), iteration) && iteration >= 0 &&
        checkpoint_at(at->path()))
      iterations.push_back(iteration);
  }
  std::sort(iterations.begin(), iterations.end());
  return iterations;
}

// The word of the tracker; "": there is none that can be read.
std::string tracked(const fs::path& dir) {
  const fs::path tracker = dir / tracker_name;
  return is_there(tracker) ? std::string(trim(read_regular_file(tracker))) : "";
}

std::vector<fs::path> newest_first(const fs::path& dir) {
  const std::string word = tracked(dir);
  std::vector<fs::path> folders;
  if (word == "release" && checkpoint_at(dir / word)) folders.push_back(dir / word);
  std::int64_t last = 0;
  const bool known = parse_int(word, last);
  std::vector<std::int64_t> iterations = iterations_in(dir), later;
  for (; !iterations.empty(); iterations.pop_back()) {
    if (known && iterations.back() > last)
      later.push_back(iterations.back());
    else
      folders.push_back(checkpoint_folder(dir, iterations.back()));
  }
  for (const std::int64_t iteration : later) folders.push_back(checkpoint_folder(dir, iteration));
  return folders;
}

void open_and_verify(const CheckpointPlace& place, WhichCheckpoint which, const std::function<void()>& working) {
  const auto verified = [&](std::size_t) {
    if (working) working();
  };
  if (place.form == CheckpointForm::weft) {
    const RunCheckpoint checkpoint(place.folder);
    if (which == WhichCheckpoint::newest_verified) checkpoint.verify(verified);
  } else {
    const TorchDistCheckpoint checkpoint(place.folder);
    if (which == WhichCheckpoint::newest_verified) verify_tensors(checkpoint, verified);
  }
}

}  // namespace

std::optional<CheckpointPlace> checkpoint_at(const fs::path& folder) {
  if (is_there(folder / manifest_name)) return CheckpointPlace{folder, CheckpointForm::weft};
  for (const char* name : {".metadata", "metadata.json", "mp_rank_00", "mp_rank_00_000"})
    if (is_there(folder / name)) return CheckpointPlace{folder, CheckpointForm::megatron};
  return std::nullopt;
}

std::optional<CheckpointPlace> find_checkpoint(const fs::path& dir, std::optional<std::int64_t> step,
                                               WhichCheckpoint which, const Warn& warn,
                                               const std::function<void()>& working) {
  const std::optional<CheckpointPlace> itself = checkpoint_at(dir);
  if (step) {
    const fs::path folder = checkpoint_folder(dir, *step);
    if (const std::optional<CheckpointPlace> place = checkpoint_at(folder)) return place;
    if (itself)
      throw UserError("--ckpt-step {}: {} is itself a checkpoint; drop the flag, or name the folder above", *step,
                      dir.string());
    std::vector<std::string> there;
    for (std::int64_t iteration : iterations_in(dir)) there.push_back(fmt::format("{}", iteration));
    throw UserError("--ckpt-step {}: there is no {}; the checkpoints in {} are of iterations {}", *step,
                    folder.string(), dir.string(), there.empty() ? "none" : join(there, ", "));
  }
  if (itself) return itself;
  if (which != WhichCheckpoint::tracked) {
    for (const fs::path& folder : newest_first(dir)) {
      try {
        const std::optional<CheckpointPlace> place = checkpoint_at(folder);
        open_and_verify(*place, which, working);
        return place;
      } catch (const UserError& error) {
        if (warn) warn(fmt::format("{}; looking for another checkpoint", error.what()));
      }
    }
    return std::nullopt;
  }
  const fs::path tracker = dir / tracker_name;
  if (!is_there(tracker)) {
    if (const std::vector<std::int64_t> there = iterations_in(dir); !there.empty() && warn)
      warn(
          fmt::format("{} has no {}, which names the checkpoint to go on from; the newest there is {}: --ckpt-step {} "
                      "loads it",
                      dir.string(), tracker_name, checkpoint_folder(dir, there.back()).string(), there.back()));
    return std::nullopt;
  }
  const std::string text = read_regular_file(tracker);
  const bool release = trim(text) == "release";  // of Megatron's: converted, not of a run
  const fs::path folder = release ? dir / "release" : checkpoint_folder(dir, *latest_checkpoint(dir));
  if (const std::optional<CheckpointPlace> place = checkpoint_at(folder)) return place;
  throw UserError(
      "{} names {}, but {} is not a complete checkpoint; --load-last-complete takes the newest that is, --ckpt-step N "
      "another",
      tracker.string(), release ? "a release" : fmt::format("iteration {}", trim(text)), folder.string());
}

std::unique_ptr<CheckpointReader> open_checkpoint(const CheckpointPlace& place, const ModelConfig& config,
                                                  MasterWeights masters) {
  if (place.form == CheckpointForm::weft) return std::make_unique<RunCheckpoint>(place.folder);
  return std::make_unique<MegatronCheckpoint>(place.folder, config, masters);
}

Json arguments_of(const CheckpointPlace& place) {
  if (place.form == CheckpointForm::weft) return RunCheckpoint(place.folder).arguments();
  return TorchDistCheckpoint(place.folder).args();
}

}  // namespace weft
