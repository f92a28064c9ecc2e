#include "weft/pattern/split.h"

#include <algorithm>

#include <fmt/format.h>

#include "weft/base/error.h"

namespace weft {
namespace {

constexpr int most_ranks = 1 << 20;  // more than any machine has; a typo must not exhaust memory

// Layers of each pipeline rank for a main part without '|'.
std::vector<int> layers_per_rank(std::string_view text, const PatternPart& main, const SplitOptions& options) {
  const std::vector<PatternItem>& items = main.segments.front();
  const int layers = static_cast<int>(items.size());
  int rest = layers, ranks = options.pp;
  for (const auto& [count, which] :
       {std::pair(options.first_stage_layers, "first"), std::pair(options.last_stage_layers, "last")}) {
    if (!count) continue;
    if (options.pp == 1) fail_pattern(text, main.begin, "a first or last stage count needs at least 2 pipeline ranks");
    if (*count < 0 || *count > rest)
      fail_pattern(
          text, main.end,
          fmt::format("{} layers for the {} stage: out of range, the main part has 0 to {} left", *count, which, rest));
    rest -= *count;
    --ranks;
  }
  const int each = ranks == 0 ? 0 : rest / ranks;
  const int left = rest - each * ranks;
  if (left > 0) {
    const char* layers_do = rest == 1 ? "layer does" : "layers do";
    const std::string sum =
        ranks == 0 ? "the first and last stage counts do not add up to the layers of the main part"
        : ranks == options.pp
            ? fmt::format("{} {} not divide over {} pipeline ranks", rest, layers_do, ranks)
            : fmt::format("{} remaining {} not divide over the {} other pipeline ranks", rest, layers_do, ranks);
    const int first_left = options.first_stage_layers.value_or(0) + each * ranks;
    fail_pattern(text, items[static_cast<std::size_t>(first_left)].begin,
                 fmt::format("{}: {} left over from here (a group counts as one layer)", sum, left));
  }
  std::vector<int> counts(static_cast<std::size_t>(options.pp), each);
  if (options.first_stage_layers) counts.front() = *options.first_stage_layers;
  if (options.last_stage_layers) counts.back() = *options.last_stage_layers;
  return counts;
}

}  // namespace

std::vector<std::vector<PatternItem>> split_main(std::string_view text, const PatternPart& main,
                                                 const SplitOptions& options) {
  if (options.pp < 1 || options.pp > most_ranks)
    throw UserError("{} pipeline ranks: the number must be 1 to {}", options.pp, most_ranks);
  const std::size_t segments = main.segments.size();
  if (segments > 1) {
    if (options.first_stage_layers || options.last_stage_layers)
      fail_pattern(text, text.find('|'), "'|' already places the layers: drop it, or the first and last stage counts");
    if (segments % static_cast<std::size_t>(options.pp) != 0)
      fail_pattern(
          text, text.substr(0, main.end).rfind('|'),
          fmt::format(
              "{} segments cannot be spread over {} pipeline ranks: their number must be a multiple of the ranks "
              "(the last '|' is marked; empty segments are legal)",
              segments, options.pp));
    return main.segments;
  }
  std::vector<std::vector<PatternItem>> result;
  auto next = main.segments.front().begin();
  for (int count : layers_per_rank(text, main, options)) {
    result.emplace_back(next, next + count);
    next += count;
  }
  return result;
}

}  // namespace weft
