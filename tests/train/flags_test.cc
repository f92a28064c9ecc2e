#include "weft/train/flags.h"

#include <gtest/gtest.h>

#include "weft/base/error.h"

namespace weft {
namespace {

using Source = FlagOrigin::Source;
enum class Colour { red, green };

// One flag of each kind.
struct Fixture {
  bool verbose = false, fast = true;
  std::optional<bool> norm;
  std::int64_t hidden = 128, stories = 0;
  double lr = 0.001;
  std::optional<double> fraction;
  std::string name = "none given", pattern;
  std::vector<std::string> paths, samples;
  Colour colour = Colour::red;
  FlagTable flags{"weft test", "Tests flags."};

  Fixture() {
    flags.section("Numbers");
    flags.add("--hidden-size", hidden, "N", "Width.").at_least(1).alias("--width");
    flags.add("--lr", lr, "X", "Rate.").above(0).below(1);
    flags.add("--fraction", fraction, "X", "Share.").at_least(0).at_most(1);
    flags.add("--stories", stories, "BYTES", "Stories.").at_least(1).or_alone("4000").standard("as needed");
    flags.section("Switches");
    flags.add("--verbose", verbose, "Say more.");
    flags.add("--fast", fast, "Be fast.").no_form().negation("--slow");
    flags.add("--norm", norm, "Normalise.").no_form();
    flags.section("Texts");
    flags.add("--name", name, "TEXT", "A name.");
    flags.add("--pattern", pattern, "TEXT", "A pattern [*].");
    flags.add("--data-path", paths, "PREFIX", "Files.");
    flags.add("--sample", samples, "PROMPT", "Prompts.").each().may_be_empty();
    flags.choice("--colour", colour, {{"red", Colour::red}, {"green", Colour::green}}, "Colour.")
        .means("--green", "green")
        .means("--red", "red")
        .lacks("blue", "there is no blue paint");
    flags.section("Foreign");
    flags.accept("--legacy", "", "Nothing to do.");
    flags.accept("--dropout", "0", "No dropout.",
                 [](const std::string& value) { return value == "0" ? "" : "there is no dropout; use 0"; });
    flags.refuse("--fp16", "", "use --bf16");
    flags.refuse("--ramp", "A B C", "there is no ramp").takes_many();
  }

  void parse(const std::vector<std::string>& words) { flags.apply(flags.scan(words)); }

  std::string error(const std::vector<std::string>& words) {
    try {
      parse(words);
    } catch (const UserError& error) {
      return error.what();
    }
    return "no error";
  }
};

TEST(Flags, EveryKindTakesItsValue) {
  Fixture f;
  f.parse({"--hidden-size", "64",       "--lr=3e-4",   "--fraction", "0.5",  "--verbose", "--no-fast", "--norm",
           "--name",        "a b",      "--data-path", "0.3",        "x",    "0.7",       "y",         "--sample",
           "Once",          "--sample", "upon a",      "--colour",   "green"});
  EXPECT_EQ(f.hidden, 64);
  EXPECT_EQ(f.lr, 3e-4);
  EXPECT_EQ(f.fraction, 0.5);
  EXPECT_TRUE(f.verbose);
  EXPECT_FALSE(f.fast);
  EXPECT_EQ(f.norm, true);
  EXPECT_EQ(f.name, "a b");
  EXPECT_EQ(f.paths, (std::vector<std::string>{"0.3", "x", "0.7", "y"}));
  EXPECT_EQ(f.samples, (std::vector<std::string>{"Once", "upon a"}));
  EXPECT_EQ(f.colour, Colour::green);
}

TEST(Flags, WithoutWordsDefaultsStay) {
  Fixture f;
  f.parse({});
  EXPECT_EQ(f.hidden, 128);
  EXPECT_TRUE(f.fast);
  EXPECT_FALSE(f.norm.has_value());
  EXPECT_FALSE(f.fraction.has_value());
  EXPECT_FALSE(f.flags.is_set("--hidden-size"));
}

TEST(Flags, OtherSpellingsAreTheSameFlag) {
  Fixture f;
  f.parse({"--width", "32", "--slow", "--green"});
  EXPECT_EQ(f.hidden, 32);
  EXPECT_FALSE(f.fast);
  EXPECT_EQ(f.colour, Colour::green);
  EXPECT_TRUE(f.flags.is_set("hidden_size"));
}

TEST(Flags, AnOptionalValueMayBeMissing) {
  Fixture alone, given, last;
  alone.parse({"--stories", "--verbose"});
  EXPECT_EQ(alone.stories, 4000);
  given.parse({"--stories", "12", "--verbose"});
  EXPECT_EQ(given.stories, 12);
  last.parse({"--stories"});
  EXPECT_EQ(last.stories, 4000);
}

TEST(Flags, PatternsOfDashesAreValues) {
  for (const std::string pattern : {"--E", "-", "--", "--*-", "-E|--"}) {
    Fixture spaced, glued;
    spaced.parse({"--pattern", pattern, "--verbose"});
    EXPECT_EQ(spaced.pattern, pattern);
    glued.parse({"--pattern=" + pattern});
    EXPECT_EQ(glued.pattern, pattern);
  }
  Fixture equals;
  equals.parse({"--name=a=b"});
  EXPECT_EQ(equals.name, "a=b");
}

TEST(Flags, NegativeNumbersAreValues) {
  Fixture f;
  EXPECT_EQ(f.error({"--hidden-size", "-3"}), "--hidden-size: -3 is out of range; it must be at least 1");
}

TEST(Flags, UnknownFlagsSuggestTheNearest) {
  Fixture f;
  EXPECT_EQ(f.error({"--hiden-size", "64"}), "unknown flag --hiden-size; did you mean --hidden-size?");
  EXPECT_EQ(f.error({"--hidden_size=64"}), "unknown flag --hidden_size; did you mean --hidden-size?");
  EXPECT_EQ(f.error({"--no-fsat"}), "unknown flag --no-fsat; did you mean --no-fast?");
  EXPECT_EQ(f.error({"-verbose"}), "unknown flag -verbose; did you mean --verbose?");
  EXPECT_EQ(f.error({"--zzzzzzzzzz"}), "unknown flag --zzzzzzzzzz; weft test --help lists all flags");
}

TEST(Flags, NamesAreNotAbbreviated) {
  Fixture f;
  EXPECT_EQ(f.error({"--hidden", "64"}), "unknown flag --hidden; weft test --help lists all flags");
  EXPECT_EQ(f.error({"--verbos"}), "unknown flag --verbos; did you mean --verbose?");
  EXPECT_FALSE(f.verbose);
}

TEST(Flags, MissingAndUnwantedValues) {
  Fixture f;
  EXPECT_EQ(f.error({"--hidden-size"}), "--hidden-size: a value is missing; write --hidden-size N");
  EXPECT_EQ(f.error({"--hidden-size", "--verbose"}), "--hidden-size: a value is missing; write --hidden-size N");
  EXPECT_EQ(f.error({"--data-path", "--verbose"}), "--data-path: a value is missing; write --data-path PREFIX");
  EXPECT_EQ(f.error({"--verbose=true"}), "--verbose takes no value, but 'true' is given");
  EXPECT_EQ(f.error({"--slow=no"}), "--slow takes no value, but 'no' is given");
  EXPECT_EQ(f.error({"--verbose", "true"}), "unexpected argument 'true': it belongs to no flag");
}

// An unset variable of a shell script must not mean the default.
TEST(Flags, AnEmptyValueIsRefusedUnlessItMeansSomething) {
  EXPECT_EQ(Fixture().error({"--name", ""}), "--name: the value is empty; drop the flag instead");
  EXPECT_EQ(Fixture().error({"--name="}), "--name: the value is empty; drop the flag instead");
  EXPECT_EQ(Fixture().error({"--data-path", "a", ""}), "--data-path: the value is empty; drop the flag instead");
  EXPECT_EQ(Fixture().error({"--width", ""}),
            "--hidden-size: the value is empty; drop the flag instead (written as --width)");
  EXPECT_EQ(Fixture().error({"--colour", ""}), "--colour: the value is empty; drop the flag instead");
  EXPECT_EQ(Fixture().error({"--dropout", ""}), "--dropout: the value is empty; drop the flag instead");
  Fixture f;
  f.parse({"--sample", ""});
  EXPECT_EQ(f.samples, (std::vector<std::string>{""}));
}

TEST(Flags, ValuesOfTheWrongKind) {
  Fixture f;
  EXPECT_EQ(f.error({"--hidden-size", "abc"}), "--hidden-size: 'abc' is not a whole number");
  EXPECT_EQ(f.error({"--hidden-size", "1.5"}), "--hidden-size: '1.5' is not a whole number");
  EXPECT_EQ(f.error({"--hidden-size", "99999999999999999999"}),
            "--hidden-size: '99999999999999999999' is not a whole number");
  EXPECT_EQ(f.error({"--width", "abc"}), "--hidden-size: 'abc' is not a whole number (written as --width)");
  EXPECT_EQ(f.error({"--lr", "fast"}), "--lr: 'fast' is not a number");
  EXPECT_EQ(f.error({"--lr", "nan"}), "--lr: 'nan' is not a finite number");
}

TEST(Flags, ValuesOutOfRange) {
  Fixture f;
  EXPECT_EQ(f.error({"--hidden-size", "0"}), "--hidden-size: 0 is out of range; it must be at least 1");
  EXPECT_EQ(f.error({"--lr", "0"}), "--lr: 0 is out of range; it must be above 0 and below 1");
  EXPECT_EQ(f.error({"--lr", "1"}), "--lr: 1 is out of range; it must be above 0 and below 1");
  EXPECT_EQ(f.error({"--fraction", "1.5"}), "--fraction: 1.5 is out of range; it must be at least 0 and at most 1");
  EXPECT_EQ(f.error({"--fraction", "1"}), "no error");
  EXPECT_EQ(f.error({"--hidden-size", "2000000000"}),
            "--hidden-size: 2000000000 is out of range; it must be at most 1073741824");
}

TEST(Flags, Choices) {
  Fixture f;
  EXPECT_EQ(f.error({"--colour", "gren"}), "--colour: 'gren' is not one of red, green; did you mean green?");
  EXPECT_EQ(f.error({"--colour", "ultramarine"}), "--colour: 'ultramarine' is not one of red, green");
  EXPECT_EQ(f.error({"--colour", "blue"}), "--colour blue: there is no blue paint; choose one of red, green");
}

TEST(Flags, GivenTwice) {
  EXPECT_EQ(Fixture().error({"--hidden-size", "64", "--hidden-size", "128"}),
            "--hidden-size is given twice with different values: 64 and 128; keep one");
  EXPECT_EQ(Fixture().error({"--hidden-size", "64", "--width", "32"}),
            "--hidden-size is given twice with different values: 64 and 32 (--width); keep one");
  EXPECT_EQ(Fixture().error({"--red", "--green"}),
            "--colour is given twice with different values: red (--red) and green (--green); keep one");
  EXPECT_EQ(Fixture().error({"--fast", "--slow"}),
            "--fast is given twice with different values: true and false (--slow); keep one");
  EXPECT_EQ(Fixture().error({"--data-path", "a", "--data-path", "b"}),
            "--data-path is given twice with different values: a and b; keep one");
  // The same value is not a contradiction, however it is written.
  EXPECT_EQ(Fixture().error({"--lr", "0.001", "--lr", "1e-3", "--green", "--colour", "green"}), "no error");
}

TEST(Flags, ForeignFlagsLeaveANoteOrAreRefused) {
  Fixture f;
  f.parse({"--legacy", "--dropout", "0", "--legacy"});
  EXPECT_EQ(f.flags.notes(), (std::vector<std::string>{"--legacy: Nothing to do.", "--dropout 0: No dropout."}));
  EXPECT_EQ(f.error({"--dropout", "0.1"}), "--dropout 0.1: there is no dropout; use 0");
  EXPECT_EQ(f.error({"--fp16"}), "--fp16: use --bf16");
  EXPECT_EQ(f.error({"--ramp", "16", "16", "1000"}), "--ramp 16 16 1000: there is no ramp");
}

TEST(Flags, AllRefusedFlagsAreSaidAtOnce) {
  EXPECT_EQ(Fixture().error({"--fp16", "--legacy", "--ramp", "1", "2", "--dropout", "0.1"}),
            "3 flags are refused:\n"
            "  - --fp16: use --bf16\n"
            "  - --ramp 1 2: there is no ramp\n"
            "  - --dropout 0.1: there is no dropout; use 0");
}

TEST(Flags, TheCommandLineReplacesWhatAFileSaid) {
  Fixture f;
  const FlagOrigin file{.source = Source::file, .where = "a.toml:1"};
  const std::vector<FlagAssignment> from_file = {
      {"--hidden-size", {FlagValue::Form::integer, {"64"}}, file},
      {"--sample", {FlagValue::Form::list, {"x", "y"}}, file},
      {"--lr", {FlagValue::Form::real, {"0.5"}}, file},
  };
  f.flags.apply(from_file);
  EXPECT_EQ(f.samples, (std::vector<std::string>{"x", "y"}));
  f.parse({"--hidden-size", "32", "--sample", "z"});
  EXPECT_EQ(f.hidden, 32);
  EXPECT_EQ(f.lr, 0.5);
  EXPECT_EQ(f.samples, (std::vector<std::string>{"z"}));
  EXPECT_EQ(f.flags.flag("--hidden-size").origin.text(), "command line");
  EXPECT_EQ(f.flags.flag("--lr").origin.text(), "a.toml:1");
  EXPECT_EQ(f.flags.flag("--name").origin.text(), "default");
}

TEST(Flags, PositionalWords) {
  std::string pattern, extra = "absent";
  FlagTable flags("weft pattern");
  flags.positional("PATTERN", pattern, "What to explain.");
  flags.positional("EXTRA", extra, "More.", false);
  const std::vector<std::string> one = {"--E"}, none = {};
  flags.apply(flags.scan(one));
  EXPECT_EQ(pattern, "--E");
  EXPECT_EQ(extra, "absent");
  EXPECT_THROW(
      {
        try {
          flags.scan(none);
        } catch (const UserError& error) {
          EXPECT_STREQ(error.what(), "PATTERN is missing; usage: weft pattern PATTERN [EXTRA] [flags]");
          throw;
        }
      },
      UserError);
  flags.further_words_mean("quote the pattern");
  for (const char* third : {"c", "-E"}) {
    const std::vector<std::string> three = {"a", "b", third};
    try {
      flags.scan(three);
      ADD_FAILURE() << third;
    } catch (const UserError& error) {
      EXPECT_EQ(error.what(), "unexpected argument '" + std::string(third) + "': quote the pattern");
    }
  }
}

TEST(Flags, HelpIsShownEvenWhenTheRestIsWrong) {
  Fixture f;
  f.parse({"--nonsense", "--help"});
  EXPECT_TRUE(f.flags.help_wanted());
  const std::string help = f.flags.help();
  EXPECT_EQ(help.rfind("usage: weft test [flags]\nTests flags.\n\nNumbers\n  --hidden-size N\n", 0), 0u) << help;
  EXPECT_NE(help.find("      Width. [128] Also: --width.\n"), std::string::npos) << help;
  EXPECT_NE(help.find("  --stories [BYTES]\n      Stories. [as needed]\n"), std::string::npos) << help;
  EXPECT_NE(help.find("  --colour red|green\n      Colour. [red] Also: --green (green), --red (red).\n"),
            std::string::npos)
      << help;
  EXPECT_NE(help.find("  --data-path PREFIX...\n"), std::string::npos) << help;
  EXPECT_NE(help.find("\nSwitches\n  --verbose\n"), std::string::npos) << help;
}

TEST(Flags, LongHelpIsWrapped) {
  bool target = false;
  FlagTable flags("weft test");
  std::string help;
  for (int i = 0; i < 60; ++i) help += "word ";
  flags.add("--thing", target, help + "end");
  std::size_t longest = 0, length = 0;
  for (const char c : flags.help()) {
    length = c == '\n' ? 0 : length + 1;
    longest = std::max(longest, length);
  }
  EXPECT_LE(longest, 100u);
  EXPECT_GT(longest, 90u);
}

TEST(Flags, ExplainSaysValueAndOrigin) {
  Fixture f;
  f.parse({"--width", "64"});
  EXPECT_EQ(f.flags.explain("hidden-size"),
            "--hidden-size = 64\n  from      command line\n  default   128\n  range     at least 1\n"
            "  also      --width\n  Width.\n");
  f.flags.mark_derived("--fraction", "half of it");
  EXPECT_NE(f.flags.explain("--fraction").find("from      derived: half of it\n"), std::string::npos);
  EXPECT_EQ(f.flags.explain("legacy"), "--legacy\n  Nothing to do.\n");
  EXPECT_THROW(f.flags.explain("hiden-size"), UserError);
}

TEST(Flags, DumpPadsNamesWithDots) {
  Fixture f;
  f.parse({"--hidden-size", "64", "--sample", "a b"});
  const std::string dump = f.flags.dump();
  EXPECT_NE(dump.find("  hidden_size ..................................... 64\n"), std::string::npos) << dump;
  EXPECT_NE(dump.find("  sample .......................................... 'a b'\n"), std::string::npos) << dump;
  EXPECT_NE(dump.find(" as needed\n"), std::string::npos) << dump;  // a default that is computed later
  EXPECT_EQ(dump.find("legacy"), std::string::npos);
  EXPECT_EQ(dump.rfind("  colour", 0), 0u) << dump;  // sorted
}

TEST(Flags, MarkdownEscapesBars) {
  Fixture f;
  const std::string text = f.flags.markdown();
  EXPECT_NE(text.find("\n## Numbers\n\n| flag | default | meaning |\n|---|---|---|\n"
                      "| `--hidden-size N` | 128 | Width. At least 1. Also: --width. |\n"),
            std::string::npos)
      << text;
  EXPECT_NE(text.find("| `--colour red\\|green` | red |"), std::string::npos) << text;
  EXPECT_NE(text.find("| A pattern \\[\\*]. |"), std::string::npos) << text;
}

TEST(Flags, TwoFlagsOfOneNameAreOurMistake) {
  bool a = false, b = false;
  FlagTable flags("weft test");
  flags.add("--thing", a, "A.");
  flags.add("--other", b, "B.").alias("--thing");
  EXPECT_THROW(flags.scan({}), BugError);
}

}  // namespace
}  // namespace weft
