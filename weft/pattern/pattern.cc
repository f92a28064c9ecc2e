#include "weft/pattern/pattern.h"

#include <algorithm>

#include "weft/base/error.h"
#include "weft/pattern/scan.h"
#include "weft/pattern/split.h"

namespace weft {

std::optional<Symbol> symbol_of(char letter) {
  const auto found = std::find(all_symbols.begin(), all_symbols.end(), static_cast<Symbol>(letter));
  return found == all_symbols.end() ? std::nullopt : std::optional(*found);
}

std::string_view name_of(Symbol symbol) {
  switch (symbol) {
    case Symbol::mamba:
      return "Mamba-2";
    case Symbol::gated_delta:
      return "gated delta net";
    case Symbol::attention:
      return "attention";
    case Symbol::sparse_attention:
      return "sparse attention";
    case Symbol::latent_attention:
      return "multi-latent attention";
    case Symbol::mlp:
      return "MLP";
    case Symbol::experts:
      return "mixture of experts";
  }
  WEFT_CHECK(false, "symbol {}", static_cast<int>(symbol));
  return {};
}

std::string PatternLayer::letters() const {
  std::string text;
  for (Symbol symbol : symbols) text += letter(symbol);
  return text;
}

std::string PatternLayer::text() const { return grouped ? "[" + letters() + "]" : letters(); }

const Segment& Pattern::segment(int pp_rank, int virtual_stage) const {
  WEFT_CHECK(pp_rank >= 0 && pp_rank < pp && virtual_stage >= 0 && virtual_stage < virtual_stages(),
             "segment of rank {}, virtual stage {} in {} x {}", pp_rank, virtual_stage, pp, virtual_stages());
  return segments[static_cast<std::size_t>(virtual_stage * pp + pp_rank)];
}

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

std::vector<Unit> units_of(std::span<const PatternLayer> layers) {
  std::vector<Unit> units;
  bool open = false;
  for (const PatternLayer& layer : layers) {
    if (!open || layer.grouped) units.emplace_back();
    units.back().layers.push_back(layer);
    units.back().physical.insert(units.back().physical.end(), layer.physical.begin(), layer.physical.end());
    open = layer.symbols.back() != Symbol::mlp && layer.symbols.back() != Symbol::experts;
  }
  return units;
}

std::vector<Unit> units_of(const Segment& segment) { return units_of(std::span(segment.layers)); }

}  // namespace weft
