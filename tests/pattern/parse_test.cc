#include <random>

#include <gtest/gtest.h>

#include "weft/base/error.h"
#include "weft/pattern/pattern.h"

namespace weft {
namespace {

std::vector<std::string> segment_texts(const Pattern& pattern) {
  std::vector<std::string> texts;
  for (const Segment& segment : pattern.segments) texts.push_back(segment.text);
  return texts;
}

std::vector<int> physical_offsets(const Pattern& pattern) {
  std::vector<int> offsets;
  for (const Segment& segment : pattern.segments) offsets.push_back(segment.physical_offset);
  return offsets;
}

using Texts = std::vector<std::string>;
using Ints = std::vector<int>;

TEST(ParsePattern, ReadsEveryPartOfThePattern) {
  const Pattern p = parse_pattern("M[*E]|M-/[*E]", {.pp = 2});
  EXPECT_EQ(p.text, "M[*E]|M-/[*E]");
  EXPECT_EQ(p.main, "M[*E]|M-");
  EXPECT_EQ(p.mtp, "[*E]");
  EXPECT_EQ(p.mtp_depths, 1);
  EXPECT_EQ(p.physical_layers, 5);
  EXPECT_EQ(p.logical_layers, 4);
  EXPECT_EQ(p.virtual_stages(), 1);
  EXPECT_EQ(p.counts, (std::map<Symbol, int>{{Symbol::mamba, 2},
                                             {Symbol::gated_delta, 0},
                                             {Symbol::attention, 2},
                                             {Symbol::sparse_attention, 0},
                                             {Symbol::latent_attention, 0},
                                             {Symbol::mlp, 1},
                                             {Symbol::experts, 2}}));
  ASSERT_EQ(p.segments.size(), 2u);
  const Segment& second = p.segment(1, 0);
  EXPECT_EQ(second.index, 1);
  EXPECT_EQ(second.text, "M-");
  EXPECT_EQ(second.physical_offset, 3);
  EXPECT_EQ(second.logical_offset, 2);
  const PatternLayer& group = p.segments[0].layers.at(1);
  EXPECT_TRUE(group.grouped);
  EXPECT_EQ(group.letters(), "*E");
  EXPECT_EQ(group.text(), "[*E]");
  EXPECT_EQ(group.logical, 1);
  EXPECT_EQ(group.physical, (Ints{1, 2}));
  EXPECT_EQ(second.layers.at(1).logical, 3);
  EXPECT_EQ(second.layers.at(1).physical, Ints{4});
  ASSERT_EQ(p.mtp_layers.size(), 1u);
  EXPECT_EQ(p.mtp_layers[0].logical, 0);
  EXPECT_EQ(p.mtp_layers[0].physical, (Ints{0, 1}));
}

TEST(ParsePattern, KnowsEverySymbol) {
  const Pattern p = parse_pattern("MG*-E/D+");
  for (Symbol symbol : all_symbols) {
    EXPECT_EQ(p.counts.at(symbol), 1) << letter(symbol);
    EXPECT_EQ(symbol_of(letter(symbol)), symbol);
    EXPECT_FALSE(name_of(symbol).empty());
  }
  EXPECT_EQ(symbol_of('['), std::nullopt);
}

TEST(ParsePattern, CountsMtpOncePerDepth) {
  const Pattern p = parse_pattern("M*/*-/*-/*-");
  EXPECT_EQ(p.mtp_depths, 3);
  EXPECT_EQ(p.counts.at(Symbol::attention), 4);
  EXPECT_EQ(p.counts.at(Symbol::mlp), 3);
  EXPECT_EQ(p.physical_layers, 2);  // main only
  EXPECT_EQ(p.mtp_layers.size(), 2u);
}

TEST(ParsePattern, AcceptsEmptyParts) {
  EXPECT_EQ(segment_texts(parse_pattern("")), Texts{""});
  const Pattern only_mtp = parse_pattern("/[*E]");
  EXPECT_EQ(only_mtp.main, "");
  EXPECT_EQ(only_mtp.physical_layers, 0);
  EXPECT_EQ(only_mtp.mtp_depths, 1);
  EXPECT_EQ(segment_texts(only_mtp), Texts{""});
  for (const char* text : {"M*/", "M*//"}) {
    const Pattern no_mtp = parse_pattern(text);
    EXPECT_EQ(no_mtp.main, "M*");
    EXPECT_EQ(no_mtp.mtp, "");
    EXPECT_EQ(no_mtp.mtp_depths, 0);
    EXPECT_TRUE(no_mtp.mtp_layers.empty());
  }
  EXPECT_EQ(segment_texts(parse_pattern("||M*", {.pp = 3})), (Texts{"", "", "M*"}));
  EXPECT_EQ(segment_texts(parse_pattern("|", {.pp = 2})), (Texts{"", ""}));
  EXPECT_EQ(segment_texts(parse_pattern("", {.pp = 2})), (Texts{"", ""}));
}

TEST(ParsePattern, AttentionKindsMixAcrossPartsOnly) {
  EXPECT_EQ(parse_pattern("**/+D").mtp_depths, 1);
  EXPECT_EQ(parse_pattern("+D+|M").physical_layers, 4);
}

TEST(ParsePattern, PlacesSegmentsOnRanksAndVirtualStages) {
  const Pattern p = parse_pattern("MM|M*|M-|ME", {.pp = 2});
  EXPECT_EQ(physical_offsets(p), (Ints{0, 2, 4, 6}));
  EXPECT_EQ(p.virtual_stages(), 2);
  for (int i = 0; i < 4; ++i) {
    EXPECT_EQ(p.segments[i].pp_rank, i % 2);
    EXPECT_EQ(p.segments[i].virtual_stage, i / 2);
    EXPECT_EQ(p.segment(i % 2, i / 2).index, i);
  }
  const Pattern one_rank = parse_pattern("M|*|-");
  EXPECT_EQ(one_rank.virtual_stages(), 3);
  EXPECT_EQ(one_rank.segments[2].pp_rank, 0);
}

TEST(ParsePattern, SplitsEvenlyWithoutPipes) {
  const Pattern p = parse_pattern("M*M-", {.pp = 2});
  EXPECT_EQ(segment_texts(p), (Texts{"M*", "M-"}));
  EXPECT_EQ(physical_offsets(p), (Ints{0, 2}));
}

TEST(ParsePattern, SplitCountsGroupsAsOneLayer) {
  const Pattern p = parse_pattern("M[M*E]-[*-]", {.pp = 2});
  EXPECT_EQ(segment_texts(p), (Texts{"M[M*E]", "-[*-]"}));
  EXPECT_EQ(physical_offsets(p), (Ints{0, 4}));
  EXPECT_EQ(p.segments[1].logical_offset, 2);
  EXPECT_EQ(p.segments[1].layers[1].physical, (Ints{5, 6}));
}

TEST(ParsePattern, SplitsUnevenlyByFirstAndLastCounts) {
  const Pattern first = parse_pattern("M*M*M*", {.pp = 4, .first_stage_layers = 3});
  EXPECT_EQ(segment_texts(first), (Texts{"M*M", "*", "M", "*"}));
  EXPECT_EQ(physical_offsets(first), (Ints{0, 3, 4, 5}));
  const Pattern both = parse_pattern("M*M*M*M*", {.pp = 4, .first_stage_layers = 1, .last_stage_layers = 1});
  EXPECT_EQ(segment_texts(both), (Texts{"M", "*M*", "M*M", "*"}));
  EXPECT_EQ(physical_offsets(both), (Ints{0, 1, 4, 7}));
  EXPECT_EQ(segment_texts(parse_pattern("M*M", {.pp = 2, .last_stage_layers = 2})), (Texts{"M", "*M"}));
  EXPECT_EQ(segment_texts(parse_pattern("M*M", {.pp = 2, .first_stage_layers = 1, .last_stage_layers = 2})),
            (Texts{"M", "*M"}));
  EXPECT_EQ(segment_texts(parse_pattern("M*", {.pp = 3, .first_stage_layers = 0})), (Texts{"", "M", "*"}));
}

// "0 1,2 | 3": physical layers of a unit joined by ',', units by ' ', segments by " | ".
std::string units_text(std::string_view pattern) {
  std::string text;
  for (const Segment& segment : parse_pattern(pattern).segments) {
    if (segment.index > 0) text += " |";
    for (const Unit& unit : units_of(segment)) {
      text += text.empty() ? "" : " ";
      for (std::size_t i = 0; i < unit.physical.size(); ++i) text += (i ? "," : "") + std::to_string(unit.physical[i]);
    }
  }
  return text;
}

TEST(Units, CloseAfterMlpOrExpertsAndAtTheSegmentsEnd) {
  EXPECT_EQ(units_text("M*E"), "0,1,2");
  EXPECT_EQ(units_text("M[*E]"), "0 1,2");
  EXPECT_EQ(units_text("[*E][*E]"), "0,1 2,3");
  EXPECT_EQ(units_text("MM*-M-EM"), "0,1,2,3 4,5 6 7");
  EXPECT_EQ(units_text("M*|EM"), "0,1 | 2 3");
  EXPECT_EQ(units_text("M[M*]E*"), "0 1,2,3 4");  // a group begins a unit, and what follows may join it
  EXPECT_EQ(units_text("[M*][M*]-"), "0,1 2,3,4");
  EXPECT_EQ(units_text("[-*]M-"), "0,1,2,3");  // only the last symbol of a group closes
  EXPECT_EQ(units_text("|"), " |");
}

TEST(Units, CoverEveryLayerOnceInOrder) {
  const Pattern p = parse_pattern("MM*E[M*E]-|M[*-]G|/[*E]M");
  int next = 0;
  for (const Segment& segment : p.segments)
    for (const Unit& unit : units_of(segment))
      for (const PatternLayer& layer : unit.layers)
        for (int physical : layer.physical) EXPECT_EQ(physical, next++);
  EXPECT_EQ(next, p.physical_layers);
  const std::vector<Unit> mtp = units_of(p.mtp_layers);
  ASSERT_EQ(mtp.size(), 2u);
  EXPECT_EQ(mtp[1].physical, Ints{2});
}

// Any text is either refused with a caret or accepted whole: nothing is lost, invented or renumbered.
TEST(ParsePattern, AnyTextIsAcceptedWholeOrRefused) {
  constexpr std::string_view alphabet = "MG*D+-E[]|/x";
  std::minstd_rand random(7);
  int accepted = 0;
  for (int trial = 0; trial < 20000; ++trial) {
    std::string text(random() % 9, ' ');
    for (char& c : text) c = alphabet[random() % alphabet.size()];
    const SplitOptions options{.pp = static_cast<int>(random() % 3) + 1};
    try {
      const Pattern p = parse_pattern(text, options);
      ++accepted;
      std::string main = p.main, joined, letters;
      std::erase(main, '|');
      int physical = 0;
      for (const Segment& segment : p.segments) {
        joined += segment.text;
        EXPECT_EQ(segment.physical_offset, physical) << text;
        for (const PatternLayer& layer : segment.layers) {
          letters += layer.letters();
          for (int number : layer.physical) EXPECT_EQ(number, physical++) << text;
        }
      }
      EXPECT_EQ(joined, main) << text;
      EXPECT_EQ(physical, p.physical_layers) << text;
      std::erase_if(main, [](char c) { return c == '[' || c == ']'; });
      EXPECT_EQ(letters, main) << text;
      EXPECT_EQ(text.rfind(p.main + (p.mtp_depths > 0 ? "/" + p.mtp : ""), 0), 0u) << text;
    } catch (const UserError& error) {
      EXPECT_NE(std::string(error.what()).find("\n  " + text + "\n  "), std::string::npos) << error.what();
    }
  }
  EXPECT_GT(accepted, 1000);  // the trial means something
  EXPECT_LT(accepted, 19000);
}

}  // namespace
}  // namespace weft
