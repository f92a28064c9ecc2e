#include "apps/weft/pattern_command.h"

#include <algorithm>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "weft/base/error.h"
#include "weft/base/json.h"
#include "weft/base/text.h"
#include "weft/pattern/pattern.h"
#include "weft/train/options.h"

namespace weft {
namespace {

constexpr std::string_view legend =
    R"(
Patterns
  symbols   M Mamba-2   G gated delta net   * attention   + multi-latent attention
            D sparse attention   - MLP   E mixture of experts
  [*E]      a group: one layer of several symbols, never split; E only as the last
  |         ends a segment; segment = virtual stage x PP + pipeline rank
  /         begins an MTP part, one per depth, all the same

Example: weft pattern 'M[*E]|M-/[*E]' --pp 2
)";

Json to_json(const Pattern& pattern) {
  Json counts = Json::object();
  for (Symbol symbol : all_symbols) counts[std::string(1, letter(symbol))] = pattern.counts.at(symbol);
  Json segments = Json::array();
  for (const Segment& segment : pattern.segments) {
    Json layers = Json::array();
    for (const PatternLayer& layer : segment.layers)
      layers.push_back({{"logical", layer.logical}, {"symbols", layer.letters()}, {"physical", layer.physical}});
    segments.push_back({{"index", segment.index},
                        {"pp_rank", segment.pp_rank},
                        {"virtual_stage", segment.virtual_stage},
                        {"text", segment.text},
                        {"physical_offset", segment.physical_offset},
                        {"logical_offset", segment.logical_offset},
                        {"layers", layers}});
  }
  return {{"pattern", pattern.text},
          {"main", pattern.main},
          {"mtp", pattern.mtp},
          {"mtp_depths", pattern.mtp_depths},
          {"physical_layers", pattern.physical_layers},
          {"logical_layers", pattern.logical_layers},
          {"counts", counts},
          {"segments", segments}};
}

std::string counted(std::size_t count, std::string_view noun) {
  return fmt::format("{} {}{}", count, noun, count == 1 ? "" : "s");
}

std::string range(int first, int last) {
  return first == last ? std::to_string(first) : fmt::format("{}-{}", first, last);
}

// "Mamba-2 x3, attention"
std::string describe(const Unit& unit) {
  std::vector<Symbol> symbols;
  for (const PatternLayer& layer : unit.layers)
    symbols.insert(symbols.end(), layer.symbols.begin(), layer.symbols.end());
  std::vector<std::string> names;
  for (std::size_t i = 0; i < symbols.size();) {
    const auto run =
        static_cast<std::size_t>(std::find_if(symbols.begin() + static_cast<std::ptrdiff_t>(i), symbols.end(),
                                              [&](Symbol symbol) { return symbol != symbols[i]; }) -
                                 symbols.begin()) -
        i;
    names.push_back(fmt::format("{}{}", name_of(symbols[i]), run > 1 ? fmt::format(" x{}", run) : ""));
    i += run;
  }
  return join(names, ", ");
}

std::string draw_units(std::span<const PatternLayer> layers) {
  if (layers.empty()) return "    (no layers)\n";
  std::vector<std::string> texts;
  std::size_t width = 5;
  const std::vector<Unit> units = units_of(layers);
  for (const Unit& unit : units) {
    std::string& text = texts.emplace_back();
    for (const PatternLayer& layer : unit.layers) text += layer.text();
    width = std::max(width, text.size());
  }
  std::string drawing = fmt::format("    {:>4}  {:<{}}  {:<7}  {:<8}\n", "unit", "items", width, "layer", "physical");
  for (std::size_t i = 0; i < units.size(); ++i)
    drawing += fmt::format("    {:>4}  {:<{}}  {:<7}  {:<8}  {}\n", i, texts[i], width,
                           range(units[i].layers.front().logical, units[i].layers.back().logical),
                           range(units[i].physical.front(), units[i].physical.back()), describe(units[i]));
  return drawing;
}

std::string draw(const Pattern& pattern) {
  std::vector<std::string> kinds;
  for (Symbol symbol : all_symbols)
    if (const int count = pattern.counts.at(symbol); count > 0)
      kinds.push_back(fmt::format("{} {} {}", count, letter(symbol), name_of(symbol)));
  std::string drawing = fmt::format("{}\n\n", pattern.text.empty() ? "(empty pattern)" : pattern.text);
  drawing += fmt::format(
      "  main   {} ({} physical) in {} on {}, {}\n", counted(static_cast<std::size_t>(pattern.logical_layers), "layer"),
      pattern.physical_layers, counted(pattern.segments.size(), "segment"),
      counted(static_cast<std::size_t>(pattern.pp), "pipeline rank"),
      counted(static_cast<std::size_t>(pattern.virtual_stages()), "virtual stage") + (pattern.pp > 1 ? " each" : ""));
  if (pattern.mtp_depths > 0)
    drawing +=
        fmt::format("  MTP    {} of {}\n", counted(static_cast<std::size_t>(pattern.mtp_depths), "depth"), pattern.mtp);
  if (!kinds.empty()) drawing += fmt::format("  kinds  {}\n", join(kinds, ", "));
  for (int rank = 0; rank < pattern.pp; ++rank) {
    drawing += fmt::format("\npipeline rank {}\n", rank);
    for (int stage = 0; stage < pattern.virtual_stages(); ++stage) {
      const Segment& segment = pattern.segment(rank, stage);
      drawing += fmt::format("  virtual stage {}, segment {}: {}\n", stage, segment.index,
                             segment.text.empty() ? "empty" : segment.text);
      drawing += draw_units(segment.layers);
    }
  }
  if (pattern.mtp_depths > 0)
    drawing +=
        fmt::format("\nMTP, after the last segment, each depth: {}\n{}", pattern.mtp, draw_units(pattern.mtp_layers));
  return drawing;
}

}  // namespace

int run_pattern_command(std::span<const std::string> args, std::FILE* out) {
  const std::string not_given = "\n";  // an empty pattern is legal
  std::string text = not_given;
  std::int64_t pp = 1, first = 0, last = 0;
  bool json = false;
  FlagTable flags("weft pattern", "Explains a layer pattern: its segments on pipeline ranks, its layers and units.");
  ModelOptions model;
  flags.positional("PATTERN", text, "The layers, in single quotes: a shell has its own meaning for * and |.", false);
  flags.further_words_mean(
      "one pattern is explained at a time; put it in single quotes, for a shell has its own "
      "meaning for * and |");
  flags.add("--pp", pp, "N", "Pipeline ranks. Without '|' the layers are divided evenly over them.").at_least(1);
  flags.add("--first-stage-layers", first, "N", "Layers of the first rank; the rest is divided over the others.")
      .at_least(0)
      .standard("even");
  flags.add("--last-stage-layers", last, "N", "Layers of the last rank.").at_least(0).standard("even");
  flags.add("--json", json, "Prints JSON.");
  flags.section("Instead of a pattern");
  add_layer_flags(flags, model);
  flags.add("--num-experts", model.num_experts, "N", "Number of experts in a layer that has them.").at_least(1);
  flags.apply(flags.scan(args));
  if (flags.help_wanted()) {
    fmt::print(out, "{}{}", flags.help(), legend);
    return 0;
  }
  const bool given = text != not_given;
  if (!given && model.num_layers == 0)
    throw UserError("PATTERN is missing; usage: weft pattern PATTERN [flags], or weft pattern --num-layers N [flags]");
  if (given && model.num_layers > 0) throw UserError("both PATTERN and --num-layers are given; keep one");
  if (!given) text = pattern_of_layers(model);
  model.pattern = text;
  throw_problems(find_layer_problems(flags, model, given));
  SplitOptions split{.pp = static_cast<int>(pp)};
  if (flags.is_set("--first-stage-layers")) split.first_stage_layers = static_cast<int>(first);
  if (flags.is_set("--last-stage-layers")) split.last_stage_layers = static_cast<int>(last);
  const Pattern pattern = parse_pattern(text, split);
  fmt::print(out, "{}", json ? to_json(pattern).dump() + "\n" : draw(pattern));
  return 0;
}

}  // namespace weft
