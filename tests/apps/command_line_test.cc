// The help of every command, and its errors for words, numbers and files that it cannot take.
#include <cstdlib>
#include <fstream>

#include <sys/wait.h>

#include "tests/apps/weft_process.h"
#include "weft/base/file.h"

namespace weft {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

// Output that is lost is a failure; training still goes on to its end.
TEST(CommandLine, OutputThatCannotBeWrittenIsAFailure) {
  const TemporaryFolder folder;
  const std::string errors = folder.file("errors");
  for (const Words& words : {Words{"pattern", "M*"}, Words{"devices"}, Words{"check", "--pattern", "-"},
                             Words{"train", "--metrics", folder.file("metrics")} + tiny_run}) {
    std::string command = WEFT_BINARY_DIR "/weft";
    for (const std::string& word : words) command += " '" + word + "'";
    const int status = std::system((command + " > /dev/full 2> " + errors).c_str());
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 1) << words[0];
    EXPECT_THAT(read_file(errors), StartsWith("weft: not all of the output could be written (")) << words[0];
  }
  EXPECT_THAT(read_file(folder.file("metrics")), HasSubstr("\"iteration\":3"));
}

TEST(CommandLine, EveryCommandExplainsItself) {
  const std::vector<std::pair<std::string, Words>> flags_of = {
      {"train", {"--pattern", "--hidden-size", "--config", "--bf16", "--metrics", "--tensorboard-dir", "--sample"}},
      {"plan", {"--json", "--pattern", "--micro-batch-size"}},
      {"check", {"--json", "--pattern", "--micro-batch-size"}},
      {"verify", {"--json", "--steps", "--tolerance", "--pattern", "--ranks"}},
      {"probe", {"--hf", "--tokens", "--out", "--dtype", "--trajectory", "--decay-all", "--json"}},
      {"tokenize", {"--input", "--stories", "--output-prefix", "--append-eod", "--json-keys"}},
      {"pattern", {"PATTERN", "--pp", "--first-stage-layers", "--last-stage-layers", "--json"}},
      {"grid", {"--shape", "--expert", "--groups", "--offset", "--world-size", "--json"}},
      {"inspect", {"DIR", "--json", "--tensors", "--only", "--verify", "--diff"}},
      {"devices", {"--json"}},
  };
  const std::string overview = expect_done({"--help"});
  for (const auto& [command, flags] : flags_of) {
    EXPECT_THAT(overview, HasSubstr("\n  " + command + " "));
    const std::string help = expect_done({command, "--help"});
    EXPECT_THAT(help, StartsWith("usage: weft " + command));
    for (const std::string& flag : flags) EXPECT_THAT(help, HasSubstr(flag)) << command;
    EXPECT_EQ(expect_done({command, "-h"}), help);
    expect_refused({command, "--no-such-flag", "--such"}, {"unknown flag --no-such-flag"});
  }
}

TEST(CommandLine, NoCommandOrAnUnknownOne) {
  const Outcome nothing = run_weft({});
  EXPECT_EQ(nothing.code, 2);
  EXPECT_EQ(nothing.out, "");
  EXPECT_EQ(nothing.err, expect_done({"--help"})) << "the overview, where errors go";
  expect_refused({"trian"}, {"there is no command 'trian'; did you mean 'train'? `weft --help` lists all"});
  expect_refused({"xyzzy"}, {"there is no command 'xyzzy'; `weft --help` lists all"});
}

TEST(CommandLine, UnknownFlags) {
  expect_refused({"train", "--hiden-size", "32"}, {"unknown flag --hiden-size; did you mean --hidden-size?"});
  expect_refused({"train", "--xyzzy"}, {"unknown flag --xyzzy; weft train --help lists all flags"});
  expect_refused({"train", "--hidden", "32"}, {"unknown flag --hidden; "});  // names are never abbreviated
  expect_refused({"check", "-v"}, {"unknown flag -v; "});
  expect_refused({"probe", "--token", "x"}, {"unknown flag --token; did you mean --tokens?"});
  expect_refused({"devices", "--jso"}, {"unknown flag --jso; did you mean --json?"});
  expect_refused({"train", "32"}, {"unexpected argument '32'"});
}

TEST(CommandLine, BadNumbersAndChoices) {
  expect_refused({"train", "--hidden-size", "abc"}, {"--hidden-size: 'abc' is not a whole number"});
  expect_refused({"train", "--hidden-size", "32.5"}, {"--hidden-size: '32.5' is not a whole number"});
  expect_refused({"train", "--hidden-size", "0"}, {"--hidden-size: 0 is out of range; it must be at least 1"});
  expect_refused({"train", "--hidden-size", "99999999999999999999"}, {"--hidden-size: '99999999999999999999' is not"});
  expect_refused({"train", "--hidden-size"}, {"--hidden-size: a value is missing; write --hidden-size N"});
  expect_refused({"train", "--lr", "fast"}, {"--lr: 'fast' is not a number"});
  expect_refused({"train", "--lr", "nan"}, {"--lr: 'nan' is not a finite number"});
  expect_refused({"train", "--adam-beta1", "1"},
                 {"--adam-beta1: 1 is out of range; it must be at least 0 and below 1"});
  expect_refused({"train", "--dtype", "f23"}, {"--dtype: 'f23' is not one of f32, bf16, f64; did you mean f32?"});
  expect_refused({"train", "--device", "abacus"},
                 {"--device abacus: there is no such device; there are 'cpu' and 'cuda'"});
}

TEST(CommandLine, EmptyValuesAreNotTheDefault) {
  for (const char* flag : {"--pattern", "--text", "--hf", "--save-hf", "--metrics", "--data-path", "--device",
                           "--split", "--timeline", "--config", "--hidden-size"})
    expect_refused({"train", flag, ""}, {std::string(flag) + ": the value is empty; drop the flag instead"});
  expect_refused({"probe", "--hf", ""}, {"--hf: the value is empty"});
  expect_refused({"convert", "--in", ""}, {"--in: the value is empty"});
}

TEST(CommandLine, ContradictoryFlags) {
  expect_refused({"train", "--bf16", "--fp64"},
                 {"--dtype is given twice with different values: bf16 (--bf16) and f64 (--fp64); keep one"});
  expect_refused({"train", "--hidden-size", "32", "--hidden-size", "64"},
                 {"--hidden-size is given twice with different values: 32 and 64; keep one"});
  expect_refused({"train", "--mock-data", "--stories", "1000"},
                 {"--mock-data, --stories: more than one source of data; keep one"});
  expect_refused({"train", "--train-iters", "3", "--train-samples", "400"},
                 {"--train-iters 3: contradicts --train-samples 400; drop one of the two"});
  expect_refused({"train", "--min-lr", "1", "--lr", "0.1"}, {"--min-lr 1: is above --lr 0.1; lower it"});
  expect_refused({"train", "--hf", golden("llama"), "--hidden-size", "32"},
                 {"--hidden-size 32: --hf ", " already decides the model; drop the flag"});
  expect_refused({"train", "--fp16"}, {"--fp16: Weft does not train in fp16", "use --bf16"});
  expect_refused({"probe", "--hf", golden("llama"), "--tokens", golden("llama/golden.safetensors"), "--trajectory",
                  "--out", "x.safetensors"},
                 {"--trajectory prints losses; it writes no --out file"});
}

// Names that no file system takes, and files that open and cannot be read, as root too.
TEST(CommandLine, FilesThatCannotBeReadAreNamed) {
  const std::string long_name(300, 'a'), why = long_name + ": File name too long";
  for (const char* command : {"check", "train"})
    expect_refused({command, "--hf", long_name}, {"weft: cannot read the folder " + why});
  for (const char* from : {"hf", "weft"})
    expect_refused({"convert", "--from", from, "--to", "hf", "--in", long_name, "--out", "x"},
                   {"weft: cannot read the folder " + why});
  expect_refused({"train", "--text", long_name}, {"weft: cannot read " + why});
  expect_refused({"train", "--config", long_name}, {"weft: cannot read " + why});
  expect_refused({"train", "--text", "/proc/self/mem"}, {"weft: cannot read /proc/self/mem: Input/output error"});
}

TEST(CommandLine, WrongJsonIsToldWithoutTheLibrarysOwnWords) {
  const TemporaryFolder folder;
  const auto without_brackets = [&](const std::string& file, const std::string& text, const Words& words,
                                    const std::string& why) {
    std::ofstream(folder.file(file)) << text;
    const Outcome outcome = run_weft(words);
    EXPECT_EQ(outcome.code, 2);
    EXPECT_THAT(outcome.err, StartsWith("weft: " + folder.file(file) + ": " + why));
    EXPECT_THAT(outcome.err, ::testing::Not(HasSubstr("exception")));
  };
  const Words check = {"check", "--hf", folder.file("")},
              convert = {"convert", "--from",          "weft", "--to", "hf", "--in", folder.file(""),
                         "--out",   folder.file("out")};
  without_brackets("config.json", "{", check, "not valid JSON: parse error at line 1, column 2: ");
  without_brackets("manifest.json", "{\"format\": \"weft checkpoint\"}", convert,
                   "not the manifest of a checkpoint: key 'version' not found");
}

TEST(CommandLine, FlagsThatWouldDoNothing) {
  const Words dense = {"check", "--hf", golden("llama"), "--seq-length", "16"};
  expect_refused(dense + Words{"--moe-aux-loss-coeff", "0.1"}, {"--moe-aux-loss-coeff 0.1: the pattern '", "has no E"});
  expect_refused(dense + Words{"--mtp-loss-scaling-factor", "0.5"}, {"--mtp-loss-scaling-factor 0.5: ", "has no /"});
  expect_done({"check", "--hf", golden("mixtral"), "--seq-length", "16", "--moe-aux-loss-coeff", "0.1"});
  expect_refused(Words{"train"} + tiny_run + Words{"--device", "cpu", "--distributed-backend", "nccl"},
                 {"--distributed-backend nccl: NCCL connects GPUs, and this runs on the CPU"});
}

TEST(CommandLine, AllProblemsAreSaidAtOnce) {
  expect_refused({"check", "--hidden-size", "30", "--moe-router-topk", "9", "--global-batch-size", "6"},
                 {"the configuration has 3 problems:\n  - --num-attention-heads 4: must divide --hidden-size 30",
                  "\n  - --moe-router-topk 9: ", "\n  - --global-batch-size 6: "});
}

class Toml : public ::testing::Test {
 protected:
  std::string written(const std::string& text) {
    std::ofstream(file_) << text;
    return file_;
  }
  TemporaryFolder folder_;
  std::string file_ = folder_.file("run.toml");
};

TEST_F(Toml, GivesFlagsAndTheCommandLineWins) {
  written("[model]\npattern = \"[*-]\"\nhidden_size = 32\nseq-length = 16\n[optimizer]\nlr = 0.5\nbf16 = true\n");
  EXPECT_THAT(expect_done({"train", "--config", file_, "--hidden-size", "64", "--explain", "hidden-size", "--explain",
                           "lr", "--explain", "dtype"}),
              ::testing::AllOf(HasSubstr("--hidden-size = 64\n  from      command line\n"),
                               HasSubstr("--lr = 0.5\n  from      " + file_ + ":6\n"), HasSubstr("--dtype = bf16\n")));
}

TEST_F(Toml, MistakesAreShownInTheirPlace) {
  expect_refused({"train", "--config", written("hidden-size = 32\nlr = = 3\n")},
                 {file_ + ":2:6: ", "\n  lr = = 3\n       ^\n"});
  expect_refused({"train", "--config", written("name = \"open\n")}, {file_ + ":1:"});
  expect_refused({"train", "--config", written("hidden-size = 32\n\nhiden-size = 64\n")},
                 {file_ + ":3:1: unknown key hiden-size; did you mean --hidden-size?\n  hiden-size = 64\n  ^\n"});
  expect_refused({"train", "--config", written("hidden-size = \"wide\"\n")},
                 {file_ + ":1:15: --hidden-size: must be a whole number, not the text 'wide'\n"});
  expect_refused({"train", "--config", written("hidden-size = 0\n")},
                 {file_ + ":1:15: --hidden-size: 0 is out of range; it must be at least 1\n"});
  expect_refused({"train", "--config", written("config = \"other.toml\"\n")},
                 {file_ + ":1:1: config is allowed only on the command line, not in a file\n"});
  expect_refused({"train", "--config", written("lr = 1979-05-27\n")},
                 {file_ + ":1:6: lr: a value must be a text, a number"});
  expect_refused({"train", "--config", folder_.file("none.toml")}, {"none.toml", "No such file or directory"});
  EXPECT_EQ(folder_.entries(), 1u);
}

}  // namespace
}  // namespace weft
