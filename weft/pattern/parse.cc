#include "weft/pattern/items.h"

namespace weft {

Pattern parse_pattern(std::string_view text, const SplitOptions& options) {
  const std::vector<PatternPart> parts = scan_pattern(text);
  const auto text_of = [&](const PatternPart& part) {
    return std::string(text.substr(part.begin, part.end - part.begin));
  };
  Pattern pattern;
  pattern.text = text;
  pattern.main = text_of(parts.front());
  pattern.pp = options.pp;
  for (Symbol symbol : all_symbols) pattern.counts[symbol] = 0;
  if (parts.size() > 1) pattern.mtp = text_of(parts.back());
  if (!pattern.mtp.empty()) pattern.mtp_depths = static_cast<int>(parts.size()) - 1;

  for (const std::vector<PatternItem>& items : split_main(text, parts.front(), options)) {
    Segment& segment = pattern.segments.emplace_back();
    segment.index = static_cast<int>(pattern.segments.size()) - 1;
    segment.pp_rank = segment.index % options.pp;
    segment.virtual_stage = segment.index / options.pp;
    segment.physical_offset = pattern.physical_layers;
    segment.logical_offset = pattern.logical_layers;
    for (const PatternItem& item : items) {
      segment.text += item.layer.text();
      segment.layers.push_back(item.layer);
      for (Symbol symbol : item.layer.symbols) ++pattern.counts[symbol];
      pattern.physical_layers += static_cast<int>(item.layer.symbols.size());
      ++pattern.logical_layers;
    }
  }
  if (pattern.mtp_depths > 0) {
    for (const PatternItem& item : parts.back().segments.front()) {
      pattern.mtp_layers.push_back(item.layer);
      for (Symbol symbol : item.layer.symbols) pattern.counts[symbol] += pattern.mtp_depths;
    }
  }
  return pattern;
}

}  // namespace weft
