// Every malformed pattern names its rule and points at the character.
#include "weft/base/error.h"

#include <gtest/gtest.h>

#include "weft/pattern/pattern.h"

namespace weft {
namespace {

struct Fault {
  const char* name;
  const char* text;
  SplitOptions options;
  std::size_t column;  // of the caret
  const char* rule;    // the message holds it
};

std::string fault_name(const testing::TestParamInfo<Fault>& fault) { return fault.param.name; }

class PatternError : public testing::TestWithParam<Fault> {};

TEST_P(PatternError, NamesTheRuleAndPoints) {
  const Fault& fault = GetParam();
  try {
    parse_pattern(fault.text, fault.options);
    FAIL() << fault.text << " was accepted";
  } catch (const UserError& error) {
    const std::string message = error.what();
    EXPECT_EQ(message.rfind("bad pattern: ", 0), 0u) << message;
    EXPECT_NE(message.find(fault.rule), std::string::npos) << message;
    const std::string caret = "\n  " + std::string(fault.text) + "\n  " + std::string(fault.column, ' ') + "^";
    ASSERT_GE(message.size(), caret.size());
    EXPECT_EQ(message.substr(message.size() - caret.size()), caret);
  }
}

INSTANTIATE_TEST_SUITE_P(
    Grammar, PatternError,
    testing::Values(
        Fault{"unknown_symbol", "M*X-", {}, 2, "'X' is not a symbol; the symbols are M Mamba-2, G gated delta net, *"},
        Fault{"lower_case", "Mm", {}, 1, "'m' is not a symbol (did you mean 'M'?)"},
        Fault{"space", "M *", {}, 1, "' ' is not a symbol"},
        Fault{"unknown_in_group", "M[*x]", {}, 3, "'x' is not a symbol"},
        Fault{"unknown_in_mtp", "M/*/?", {}, 4, "'?' is not a symbol"},
        Fault{"unicode", "M✓*", {}, 1, "'✓' is not a symbol"}, Fault{"nested", "M[*[E]]", {}, 3, "groups do not nest"},
        Fault{"empty_group", "M[]*", {}, 2, "empty group"},
        Fault{"unmatched_open", "M[*E", {}, 1, "'[' without ']': put ']' after the group's last symbol"},
        Fault{"lone_open", "M[", {}, 1, "'[' without ']': put ']' after the group's last symbol"},
        Fault{"unmatched_close", "M*]E", {}, 2, "']' without '['"},
        Fault{"close_in_mtp", "M/*]", {}, 3, "']' without '['"},
        Fault{"pipe_in_group", "[*|E]", {}, 2, "'|' inside a group"},
        Fault{"slash_in_group", "[*/E]", {}, 2, "'/' inside a group"},
        Fault{"pipe_in_mtp_group", "M/[*|E]", {}, 4, "'|' inside a group"},
        Fault{"experts_not_last", "M[*EM]", {}, 3, "'E' must be the last symbol of its group"},
        Fault{"experts_twice", "[EE]", {}, 1, "'E' must be the last symbol of its group"},
        Fault{"pipe_in_mtp", "M/*|E", {}, 3, "'|' is allowed in the main part only"},
        Fault{"mtp_differs", "M/*E/*-", {}, 6, "MTP parts differ: all must be the same, and the first is '*E'"},
        Fault{"mtp_shorter", "M/*E/*", {}, 6, "MTP parts differ"},
        Fault{"mtp_brackets_differ", "M/[*E]/*E", {}, 7, "MTP parts differ"},
        Fault{"mtp_third_differs", "M/*/*/M", {}, 6, "MTP parts differ"},
        Fault{"mtp_empty_after_full", "M/*/", {}, 4, "MTP parts differ"},
        Fault{"star_then_plus", "*M+", {}, 2, "'*' and '+' in one part"},
        Fault{"sparse_then_star", "DM|[M*]", {}, 5, "'*' and 'D' in one part"},
        Fault{"star_and_sparse_in_mtp", "M/*D", {}, 3, "'*' and 'D' in one part"}),
    fault_name);

INSTANTIATE_TEST_SUITE_P(
    Split, PatternError,
    testing::Values(
        Fault{"segments", "M|*|-/M", {.pp = 2}, 3, "3 segments cannot be spread over 2 pipeline ranks"},
        Fault{"too_few_segments", "M|*", {.pp = 4}, 1, "2 segments cannot be spread over 4 pipeline ranks"},
        Fault{"layers", "M*M*M", {.pp = 2}, 4, "5 layers do not divide over 2 pipeline ranks: 1 left over"},
        Fault{"groups_are_one_layer", "M[*E]-", {.pp = 2}, 5, "3 layers do not divide"},
        Fault{"fewer_layers_than_ranks", "M*", {.pp = 4}, 0, "2 layers do not divide over 4 pipeline ranks: 2 left"},
        Fault{"one_layer", "[*E]", {.pp = 2}, 0, "1 layer does not divide over 2 pipeline ranks"},
        Fault{"middle",
              "M*M*M*",
              {.pp = 4, .first_stage_layers = 2},
              5,
              "4 remaining layers do not divide over the 3 other pipeline ranks: 1 left over"},
        Fault{"no_middle",
              "M*M",
              {.pp = 2, .first_stage_layers = 1, .last_stage_layers = 1},
              1,
              "first and last stage counts do not add up to the layers of the main part: 1 left"},
        Fault{"first_too_large",
              "M*/M",
              {.pp = 2, .first_stage_layers = 3},
              2,
              "3 layers for the first stage: out of range, the main part has 0 to 2 left"},
        Fault{"first_negative", "M*", {.pp = 2, .first_stage_layers = -1}, 2, "-1 layers for the first stage: out of"},
        Fault{"last_too_large",
              "M*M",
              {.pp = 2, .first_stage_layers = 2, .last_stage_layers = 2},
              3,
              "2 layers for the last stage: out of range, the main part has 0 to 1 left"},
        Fault{"one_rank", "M*", {.first_stage_layers = 1}, 0, "needs at least 2 pipeline ranks"},
        Fault{"pipes_and_first", "M|*", {.pp = 2, .first_stage_layers = 1}, 1, "'|' already places the layers"},
        Fault{"pipes_and_last", "MM|*", {.pp = 2, .last_stage_layers = 1}, 2, "'|' already places the layers"}),
    fault_name);

TEST(PatternSplit, RefusesImpossibleRankCounts) {
  for (int pp : {0, -3, 1 << 30}) {
    try {
      parse_pattern("", {.pp = pp});
      FAIL() << pp;
    } catch (const UserError& error) {
      EXPECT_EQ(error.what(), std::to_string(pp) + " pipeline ranks: the number must be 1 to 1048576");
    }
  }
}

}  // namespace
}  // namespace weft
