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

// Also where the checkpoint is not complete or of a form that cannot be read: opening it tells more.
std::optional<CheckpointPlace> place_at(const fs::path& folder) {
  if (is_there(folder / manifest_name)) return CheckpointPlace{folder, CheckpointForm::weft};
  for (const char* name : {".metadata", "metadata.json", "mp_rank_00", "mp_rank_00_000"})
    if (is_there(folder / name)) return CheckpointPlace{folder, CheckpointForm::megatron};
  return std::nullopt;
}

// Ascending.
std::vector<std::int64_t> iterations_in(const fs::path& dir) {
  std::vector<std::int64_t> iterations;
  std::error_code error;
  for (fs::directory_iterator at(dir, error), end; !error && at != end; at.increment(error)) {
    const std::string name = at->path().filename().string();
    std::int64_t iteration = 0;
    if (name.starts_with("iter_") && parse_int(std::string_view(name).substr(5), iteration) && iteration >= 0 &&
        place_at(at->path()))
      iterations.push_back(iteration);
  }
  std::sort(iterations.begin(), iterations.end());
  return iterations;
}

void verify(const CheckpointPlace& place) {
  if (place.form == CheckpointForm::weft) return RunCheckpoint(place.folder).verify();
  verify_tensors(TorchDistCheckpoint(place.folder));
}

}  // namespace

std::optional<CheckpointPlace> find_checkpoint(const fs::path& dir, std::optional<std::int64_t> step,
                                               bool last_complete, const Warn& warn) {
  const std::optional<CheckpointPlace> itself = place_at(dir);
  if (step) {
    const fs::path folder = checkpoint_folder(dir, *step);
    if (const std::optional<CheckpointPlace> place = place_at(folder)) return place;
    if (itself)
      throw UserError("--ckpt-step {}: {} is itself a checkpoint; drop the flag, or name the folder above", *step,
                      dir.string());
    std::vector<std::string> there;
    for (std::int64_t iteration : iterations_in(dir)) there.push_back(fmt::format("{}", iteration));
    throw UserError("--ckpt-step {}: there is no {}; the checkpoints in {} are of iterations {}", *step,
                    folder.string(), dir.string(), there.empty() ? "none" : join(there, ", "));
  }
  if (itself) return itself;
  if (last_complete) {
    std::vector<std::int64_t> iterations = iterations_in(dir);
    for (; !iterations.empty(); iterations.pop_back()) {
      try {
        const std::optional<CheckpointPlace> place = place_at(checkpoint_folder(dir, iterations.back()));
        verify(*place);
        return place;
      } catch (const UserError& error) {
        if (warn) warn(fmt::format("{}; looking for an older checkpoint", error.what()));
      }
    }
    return std::nullopt;
  }
  const fs::path tracker = dir / tracker_name;
  if (!is_there(tracker)) return std::nullopt;
  const std::string text = read_regular_file(tracker);
  const bool release = trim(text) == "release";  // of Megatron's: converted, not of a run
  const fs::path folder = release ? dir / "release" : checkpoint_folder(dir, *latest_checkpoint(dir));
  if (const std::optional<CheckpointPlace> place = place_at(folder)) return place;
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
