// The pattern language: "M[*E]|M-/[*E]" -> symbols, layers, segments, MTP depths, units.
//
//   pattern = main ("/" mtp)*      main = segment ("|" segment)*      segment, mtp = item*
//   item = symbol | "[" symbol+ "]"
//
// Groups do not nest, and E may only be the last symbol of a group. All MTP parts are identical. A part with '*' cannot
// also have '+' or 'D'. An empty main part, empty segments and a trailing '/' (no MTP) are legal. A group changes names
// and pairing, never the math: physical layers (symbols) are the same with and without brackets.
#pragma once

#include <array>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace weft {

enum class Symbol : char {
  mamba = 'M',
  gated_delta = 'G',
  attention = '*',
  sparse_attention = 'D',
  latent_attention = '+',
  mlp = '-',
  experts = 'E',
};

// In the order in which reports list them.
inline constexpr std::array<Symbol, 7> all_symbols = {
    Symbol::mamba, Symbol::gated_delta, Symbol::attention, Symbol::sparse_attention, Symbol::latent_attention,
    Symbol::mlp,   Symbol::experts};

constexpr char letter(Symbol symbol) { return static_cast<char>(symbol); }
std::optional<Symbol> symbol_of(char letter);
std::string_view name_of(Symbol symbol);  // "Mamba-2"

// One item of the pattern. Numbers count from 0 through the whole main part, or through one MTP depth.
struct PatternLayer {
  std::vector<Symbol> symbols;  // one, or the members of the group
  bool grouped = false;         // written in brackets
  int logical = 0;
  std::vector<int> physical;  // consecutive, one per symbol

  std::string letters() const;  // "*E"
  std::string text() const;     // as written: "[*E]"
};

// The layers of one virtual pipeline stage: index = virtual_stage * pp + pp_rank.
struct Segment {
  int index = 0;
  int pp_rank = 0;
  int virtual_stage = 0;
  std::string text;
  int physical_offset = 0;  // number of layers in earlier segments
  int logical_offset = 0;
  std::vector<PatternLayer> layers;
};

struct Pattern {
  std::string text, main, mtp;  // mtp: one depth, "" without MTP
  int mtp_depths = 0;
  int pp = 1;
  std::vector<Segment> segments;         // of the main part, by index
  std::vector<PatternLayer> mtp_layers;  // of one depth
  int physical_layers = 0;               // of the main part
  int logical_layers = 0;
  std::map<Symbol, int> counts;  // of every symbol; those of MTP count once per depth

  int virtual_stages() const { return static_cast<int>(segments.size()) / pp; }
  const Segment& segment(int pp_rank, int virtual_stage) const;
};

// How a pattern is split over pipeline ranks. With '|' the segments are given, and their number must be a multiple of
// pp. Without it, the layers (items: a group is never split) are divided evenly, also among the virtual stages of a
// rank. A first or last count sets that rank's share, and the rest is divided evenly over the other ranks.
struct SplitOptions {
  int pp = 1;
  std::optional<int> first_stage_layers, last_stage_layers;
  int virtual_stages = 1;                // of a rank
  bool count_symbols = false;            // layers are counted as symbols, not as items; still no group is split
  std::vector<int> segment_layers = {};  // instead of all these: the number of items in every segment

  bool operator==(const SplitOptions&) const = default;
};

// UserError names the broken rule, with a caret under the character.
Pattern parse_pattern(std::string_view text, const SplitOptions& options = {});

// Consecutive layers of one segment or MTP depth, which the scheduler pairs and sharding gathers as a whole. A unit
// ends after an item that ends in '-' or 'E', or with the segment; a group begins a new unit. "M*E" is one unit,
// "M[*E]" two.
struct Unit {
  std::vector<PatternLayer> layers;
  std::vector<int> physical;
};
std::vector<Unit> units_of(std::span<const PatternLayer> layers);
std::vector<Unit> units_of(const Segment& segment);

}  // namespace weft
