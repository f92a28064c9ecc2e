#include "weft/train/toml.h"

#include <filesystem>
#include <fstream>

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include "weft/base/error.h"

namespace weft {
namespace {

struct Fixture {
  std::int64_t hidden = 128;
  double lr = 0.001;
  bool fast = true;
  std::string name, dtype = "f32", colour = "red";
  std::vector<std::string> paths, config;
  FlagTable flags{"weft test"};

  Fixture() {
    flags.add("--hidden-size", hidden, "N", "Width.").at_least(1);
    flags.add("--lr", lr, "X", "Rate.");
    flags.add("--fast", fast, "Be fast.").negation("--slow");
    flags.add("--name", name, "TEXT", "A name.");
    flags.add("--data-path", paths, "PREFIX", "Files.");
    flags.choice("--dtype", dtype, {{"f32", std::string("f32")}, {"bf16", std::string("bf16")}}, "Type.")
        .means("--bf16", "bf16");
    flags.choice("--colour", colour, {{"red", std::string("red")}, {"green", std::string("green")}}, "Paint.")
        .means("--red", "red");
    flags.add("--config", config, "FILE", "A file.").each().only_on_command_line();
    flags.accept("--legacy", "", "Nothing to do.");
    flags.refuse("--fp16", "", "use --bf16");
  }

  void read(const std::string& text) { flags.apply(parse_toml(text, "run.toml")); }

  std::string error(const std::string& text) {
    try {
      read(text);
    } catch (const UserError& error) {
      return error.what();
    }
    return "no error";
  }
};

TEST(Toml, NamesAreThoseOfTheFlags) {
  Fixture f;
  f.read(
      "lr = 2\nname = 'a b'\n[model]\nhidden_size = 64\n[model.deep]\nfast = false\nbf16 = true\n"
      "[data]\ndata-path = [0.25, \"a\", 1, \"b\"]\n");
  EXPECT_EQ(f.hidden, 64);
  EXPECT_EQ(f.lr, 2);
  EXPECT_FALSE(f.fast);
  EXPECT_EQ(f.name, "a b");
  EXPECT_EQ(f.dtype, "bf16");
  EXPECT_EQ(f.paths, (std::vector<std::string>{"0.25", "a", "1", "b"}));
  EXPECT_EQ(f.flags.flag("hidden-size").origin.text(), "run.toml:4");
}

TEST(Toml, RealNumbersKeepAllTheirDigits) {
  Fixture f;
  f.read("lr = 0.1234567890123456789\n");
  EXPECT_EQ(f.lr, 0.1234567890123456789);
}

TEST(Toml, SwitchesMayBeWrittenEitherWay) {
  Fixture f;
  f.read("slow = false\n");
  EXPECT_TRUE(f.fast);
  Fixture g;
  g.read("slow = true\n");
  EXPECT_FALSE(g.fast);
}

TEST(Toml, ADeniedChoiceIsAnyOther) {
  Fixture f;
  f.read("bf16 = false\n");
  EXPECT_EQ(f.dtype, "f32");
  Fixture g;
  g.read("red = false\ncolour = 'green'\n");
  EXPECT_EQ(g.colour, "green");
  EXPECT_EQ(Fixture().error("red = false"),
            "run.toml:1:7: red = false does not tell what to use instead; set colour\n"
            "  red = false\n"
            "        ^");
  EXPECT_EQ(Fixture().error("dtype = false").rfind("run.toml:1:9: --dtype: must be a text, not false", 0), 0u);
  EXPECT_EQ(Fixture().error("bf16 = false\ndtype = 'bf16'\n"),
            "run.toml:1:8: --dtype is given twice with different values: bf16 (run.toml:2) and f32 (--bf16, "
            "run.toml:1); keep one\n"
            "  bf16 = false\n"
            "         ^");
}

TEST(Toml, AListOfOneMayStandAlone) {
  Fixture f;
  f.read("data-path = 'a'\n");
  EXPECT_EQ(f.paths, (std::vector<std::string>{"a"}));
  f.read("data-path = 0.1\n");
  EXPECT_EQ(f.paths, (std::vector<std::string>{"0.1"}));
  EXPECT_EQ(f.error("data-path = true").rfind("run.toml:1:13: --data-path: must be a list of texts, not true", 0), 0u);
}

TEST(Toml, UnknownKeysPointAndSuggest) {
  EXPECT_EQ(Fixture().error("[model]\n  hiden-size = 64\n"),
            "run.toml:2:3: unknown key hiden-size; did you mean --hidden-size?\n"
            "    hiden-size = 64\n"
            "    ^");
}

TEST(Toml, WrongValuesPointAtTheValue) {
  EXPECT_EQ(Fixture().error("hidden-size = \"64\"\n"),
            "run.toml:1:15: --hidden-size: must be a whole number, not the text '64'\n"
            "  hidden-size = \"64\"\n"
            "                ^");
  EXPECT_EQ(Fixture().error("hidden-size = 1.5"),
            "run.toml:1:15: --hidden-size: must be a whole number, not 1.5\n"
            "  hidden-size = 1.5\n"
            "                ^");
  EXPECT_EQ(Fixture().error("\n\nhidden-size = 0 # none"),
            "run.toml:3:15: --hidden-size: 0 is out of range; it must be at least 1\n"
            "  hidden-size = 0 # none\n"
            "                ^");
  EXPECT_EQ(Fixture().error("fast = 1"),
            "run.toml:1:8: --fast must be true or false\n"
            "  fast = 1\n"
            "         ^");
  EXPECT_EQ(Fixture().error("name = [1]"),
            "run.toml:1:8: --name: must be a text, not a list\n"
            "  name = [1]\n"
            "         ^");
  EXPECT_EQ(Fixture().error("lr = true"),
            "run.toml:1:6: --lr: must be a number, not true\n"
            "  lr = true\n"
            "       ^");
  EXPECT_EQ(Fixture().error("dtype = 'f16'"),
            "run.toml:1:9: --dtype: 'f16' is not one of f32, bf16; did you mean bf16?\n"
            "  dtype = 'f16'\n"
            "          ^");
  EXPECT_EQ(Fixture().error("lr = 1979-05-27"),
            "run.toml:1:6: lr: a value must be a text, a number, true, false or a list of these\n"
            "  lr = 1979-05-27\n"
            "       ^");
  EXPECT_EQ(Fixture().error("lr = nan"),
            "run.toml:1:6: --lr: 'nan' is not a finite number\n"
            "  lr = nan\n"
            "       ^");
}

TEST(Toml, EmptyValuesAreRefusedInTheirPlace) {
  EXPECT_EQ(Fixture().error("lr = 1\nname = ''\n"),
            "run.toml:2:8: --name: the value is empty; drop the flag instead\n"
            "  name = ''\n"
            "         ^");
  EXPECT_EQ(Fixture().error("data-path = []"),
            "run.toml:1:13: --data-path: the value is empty; drop the flag instead\n"
            "  data-path = []\n"
            "              ^");
  EXPECT_EQ(Fixture().error("data-path = ['a', '']").rfind("run.toml:1:13: --data-path: the value is empty", 0), 0u);
}

TEST(Toml, CaretsCountCharactersNotBytes) {
  EXPECT_EQ(Fixture().error("names.\"\xc3\xa9\xc3\xa9\".hidden-size = 0"),
            "run.toml:1:26: --hidden-size: 0 is out of range; it must be at least 1\n"
            "  names.\"\xc3\xa9\xc3\xa9\".hidden-size = 0\n"
            "                           ^");
}

TEST(Toml, BrokenSyntaxPointsAtTheCharacter) {
  const std::string error = Fixture().error("lr = 1\nhidden-size = \n");
  EXPECT_EQ(error.rfind("run.toml:2:", 0), 0u) << error;
  EXPECT_NE(error.find("\n  hidden-size = \n"), std::string::npos) << error;
  EXPECT_EQ(error.back(), '^') << error;
  EXPECT_EQ(Fixture().error("lr = 1\nlr = 2\n").rfind("run.toml:2:", 0), 0u);
}

TEST(Toml, OneValueInTwoSectionsIsAContradiction) {
  EXPECT_EQ(Fixture().error("[a]\nhidden-size = 1\n[b]\nhidden-size = 2\n"),
            "run.toml:4:15: --hidden-size is given twice with different values: 1 (run.toml:2) and 2 (run.toml:4); "
            "keep one\n"
            "  hidden-size = 2\n"
            "                ^");
}

TEST(Toml, ForeignFlags) {
  Fixture f;
  f.read("legacy = true\nfp16 = false\n");
  EXPECT_EQ(f.flags.notes(), (std::vector<std::string>{"--legacy: Nothing to do."}));
  EXPECT_EQ(f.error("fp16 = true"),
            "run.toml:1:8: --fp16: use --bf16\n"
            "  fp16 = true\n"
            "         ^");
}

TEST(Toml, FilesDoNotNameFiles) {
  EXPECT_EQ(Fixture().error("config = 'other.toml'"),
            "run.toml:1:1: config is allowed only on the command line, not in a file\n"
            "  config = 'other.toml'\n"
            "  ^");
}

class TomlFiles : public testing::Test {
 protected:
  std::string write(const std::string& name, const std::string& text) {
    const auto file = folder_ / name;
    std::ofstream(file) << text;
    return file.string();
  }
  void SetUp() override {
    const auto* test = testing::UnitTest::GetInstance()->current_test_info();
    folder_ = std::filesystem::path(testing::TempDir()) / fmt::format("weft-toml-{}-{}", test->name(), getpid());
    std::filesystem::create_directories(folder_);
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  std::filesystem::path folder_;
};

TEST_F(TomlFiles, TheCommandLineWinsWhereverItStands) {
  const std::string file = write("a.toml", "hidden-size = 64\nlr = 0.5\ndata-path = ['x', 'y']\n");
  for (const bool before : {true, false}) {
    Fixture f;
    std::vector<std::string> words = {"--hidden-size", "32", "--data-path", "z"};
    words.insert(before ? words.begin() : words.end(), {"--config", file});
    parse_flags(f.flags, words);
    EXPECT_EQ(f.hidden, 32);
    EXPECT_EQ(f.lr, 0.5);
    EXPECT_EQ(f.paths, (std::vector<std::string>{"z"}));
  }
}

TEST_F(TomlFiles, AMistakeInAFileIsReportedThoughTheCommandLineWins) {
  const std::string file = write("a.toml", "hidden-size = 'x'\n");
  Fixture f;
  EXPECT_THROW(parse_flags(f.flags, std::vector<std::string>{"--config", file, "--hidden-size", "32"}), UserError);
}

TEST_F(TomlFiles, ALaterFileWinsOverAnEarlierOne) {
  const std::string base = write("a.toml", "hidden-size = 64\nlr = 0.5\nbf16 = true\ndata-path = ['x', 'y']\n"),
                    over = write("b.toml", "hidden-size = 32\nbf16 = false\ndata-path = 'z'\n");
  Fixture f;
  parse_flags(f.flags, std::vector<std::string>{"--config", base, "--config", over});
  EXPECT_EQ(f.hidden, 32);
  EXPECT_EQ(f.lr, 0.5);
  EXPECT_EQ(f.dtype, "f32");
  EXPECT_EQ(f.paths, (std::vector<std::string>{"z"}));
  EXPECT_EQ(f.flags.flag("hidden-size").origin.text(), over + ":1");
  EXPECT_EQ(f.flags.flag("lr").origin.text(), base + ":2");
  Fixture g;
  parse_flags(g.flags, std::vector<std::string>{"--hidden-size", "16", "--config", over, "--config", base});
  EXPECT_EQ(g.hidden, 16);
  EXPECT_EQ(g.dtype, "bf16");
}

TEST_F(TomlFiles, AMissingFileIsNamed) {
  Fixture f;
  try {
    parse_flags(f.flags, std::vector<std::string>{"--config", (folder_ / "none.toml").string()});
    FAIL();
  } catch (const UserError& error) {
    EXPECT_NE(std::string(error.what()).find("none.toml"), std::string::npos);
  }
}

// The parser walks tables within tables on the stack: 200,000 parts of a key would end the process.
TEST(Toml, KeysOfManyPartsAndNestedValuesAreRefused) {
  Fixture f;
  std::string dotted = "a";
  for (int i = 0; i < 200'000; ++i) dotted += ".a";
  EXPECT_EQ(f.error("lr = 1\n" + dotted + " = 1\n"), "run.toml:2: a key has more than 32 parts; no flag needs this");
  EXPECT_EQ(f.error("[" + dotted + "]\n"), "run.toml:1: a key has more than 32 parts; no flag needs this");
  EXPECT_EQ(f.error("x = " + std::string(100'000, '[')),
            "run.toml:1: values nest more than 32 deep; no flag needs this");
  std::string tables = "x = ";
  for (int i = 0; i < 100'000; ++i) tables += "{a=";
  EXPECT_EQ(f.error(tables), "run.toml:1: values nest more than 32 deep; no flag needs this");
  // Dots and brackets in texts and comments, and in many values of a list, are nothing.
  const std::string dots(100, '.'), brackets(100, '[');
  std::string list = "0.5";
  for (int i = 0; i < 100; ++i) list += ", 0.5";
  f.read("# " + dots + brackets + "\nname = \"\\\"" + dots + brackets + "\" # '\ndata-path = [" + list + "]\n");
  EXPECT_EQ(f.name, "\"" + dots + brackets);
  f.read("name = '''\n" + dots + "'" + brackets + "\n'''\nlr = 3");
  EXPECT_EQ(f.lr, 3);
}

}  // namespace
}  // namespace weft
