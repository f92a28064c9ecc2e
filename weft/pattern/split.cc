#include "weft/pattern/split.h"

#include <algorithm>

#include <fmt/format.h>

#include "weft/base/error.h"

namespace weft {
namespace {

constexpr int most_ranks = 1 << 20;  // more than any machine has; a typo must not exhaust memory

// How many layers an item counts as.
int weight_of(const PatternItem& item, const SplitOptions& options) {
  return options.count_symbols ? static_cast<int>(item.layer.symbols.size()) : 1;
}

// Layers of each pipeline rank for a main part without '|'.
std::vector<int> layers_per_rank(std::string_view text, const PatternPart& main, const SplitOptions& options) {
  const std::vector<PatternItem>& items = main.segments.front();
  int layers = 0;
  for (const PatternItem& item : items) layers += weight_of(item, options);
  const char* const group = options.count_symbols ? "a layer is a symbol" : "a group counts as one layer";
  const auto begin_of = [&](int layer) {  // of the item that holds it
    for (const PatternItem& item : items)
      if ((layer -= weight_of(item, options)) < 0) return item.begin;
    return main.end;
  };
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
    fail_pattern(text, begin_of(options.first_stage_layers.value_or(0) + each * ranks),
                 fmt::format("{}: {} left over from here ({})", sum, left, group));
  }
  std::vector<int> counts(static_cast<std::size_t>(options.pp), each);
  if (options.first_stage_layers) counts.front() = *options.first_stage_layers;
  if (options.last_stage_layers) counts.back() = *options.last_stage_layers;
  for (std::size_t rank = 0; rank < counts.size(); ++rank)
    if (counts[rank] % options.virtual_stages != 0)
      fail_pattern(text, main.begin,
                   fmt::format("the {} layers of pipeline rank {} do not divide over its {} virtual stages ({})",
                               counts[rank], rank, options.virtual_stages, group));
  return counts;
}

}  // namespace

namespace {

std::vector<std::vector<PatternItem>> split_as_given(std::string_view text, const PatternPart& main,
                                                     const SplitOptions& options) {
  const std::vector<PatternItem>& items = main.segments.front();
  const std::size_t segments = options.segment_layers.size();
  if (segments % static_cast<std::size_t>(options.pp) != 0)
    fail_pattern(
        text, main.begin,
        fmt::format("{} stages cannot be spread over {} pipeline ranks: their number must be a multiple of the "
                    "ranks",
                    segments, options.pp));
  std::int64_t layers = 0;
  for (int count : options.segment_layers) layers += count;
  if (layers != std::ssize(items))
    fail_pattern(text, main.end, fmt::format("{} layers are placed, and the main part has {}", layers, items.size()));
  std::vector<std::vector<PatternItem>> result;
  auto next = items.begin();
  for (int count : options.segment_layers) {
    result.emplace_back(next, next + count);
    next += count;
  }
  return result;
}

}  // namespace

std::vector<std::vector<PatternItem>> split_main(std::string_view text, const PatternPart& main,
                                                 const SplitOptions& options) {
  if (options.pp < 1 || options.pp > most_ranks)
    throw UserError("{} pipeline ranks: the number must be 1 to {}", options.pp, most_ranks);
  if (options.virtual_stages < 1 || options.virtual_stages > most_ranks)
    throw UserError("{} virtual stages: the number must be 1 to {}", options.virtual_stages, most_ranks);
  const std::size_t segments = main.segments.size();
  if (segments > 1) {
    if (options.virtual_stages > 1 || !options.segment_layers.empty())
      fail_pattern(text, text.find('|'), "'|' already places the layers: drop it, or the number of virtual stages");
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
  if (!options.segment_layers.empty()) return split_as_given(text, main, options);
  const std::vector<int> counts = layers_per_rank(text, main, options);
  std::vector<std::vector<PatternItem>> result;
  const std::vector<PatternItem>& items = main.segments.front();
  auto next = items.begin();
  for (int v = 0; v < options.virtual_stages; ++v)
    for (const int of_rank : counts) {
      std::vector<PatternItem>& segment = result.emplace_back();
      int left = of_rank / options.virtual_stages;
      for (; left > 0; ++next) {
        left -= weight_of(*next, options);
        if (left < 0)
          fail_pattern(
              text, next->begin,
              fmt::format("segment {} would end within this group: use '|' to place the layers", result.size() - 1));
        segment.push_back(*next);
      }
    }
  return result;
}

}  // namespace weft
