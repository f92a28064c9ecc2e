#include "weft/train/last_complete.h"

#include <span>
#include <string>

#include "weft/base/error.h"
#include "weft/checkpoint/run_checkpoint.h"

namespace weft {
namespace {

// What the first rank tells: one of these, or an iteration.
constexpr std::int64_t working = -4, none = -3, itself = -2, release = -1;

std::int64_t word_of(const std::optional<CheckpointPlace>& place, const std::filesystem::path& dir) {
  if (!place) return none;
  if (place->folder == dir) return itself;
  return iteration_in(place->folder.filename().string()).value_or(release);
}

std::filesystem::path folder_of(std::int64_t word, const std::filesystem::path& dir) {
  if (word == itself) return dir;
  return word == release ? dir / "release" : checkpoint_folder(dir, word);
}

}  // namespace

std::optional<CheckpointPlace> find_last_complete(const RankExchange& ranks, RankId rank,
                                                  const std::filesystem::path& dir, const Warn& warn,
                                                  std::chrono::milliseconds interval) {
  using Clock = std::chrono::steady_clock;
  const auto tell = [&](std::int64_t word) { return ranks.gather(std::span(&word, 1))[0]; };
  if (rank.value == 0) {
    Clock::time_point told = Clock::now();
    const std::optional<CheckpointPlace> place = find_checkpoint(dir, {}, WhichCheckpoint::newest_verified, warn, [&] {
      if (Clock::now() - told < interval) return;
      tell(working);
      told = Clock::now();
    });
    tell(word_of(place, dir));
    return place;
  }
  std::int64_t word = working;
  while (word == working) word = tell(none);  // only the first rank's counts
  if (word == none) return std::nullopt;
  const std::filesystem::path folder = folder_of(word, dir);
  if (const std::optional<CheckpointPlace> place = checkpoint_at(folder)) return place;
  throw UserError("--load {}: rank {} does not see {}, which rank 0 goes on from; all ranks must see the same folder",
                  dir.string(), rank.value, folder.string());
}

}  // namespace weft
