// `weft train` from its command line: every kind of data, precision and output; what stops a run.
#include <filesystem>
#include <fstream>

#include <nlohmann/json.hpp>
#include <sys/resource.h>

#include "tests/apps/weft_process.h"
#include "weft/base/file.h"
#include "weft/base/json.h"
#include "weft/base/text.h"
#include "weft/checkpoint/safetensors.h"

namespace weft {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

const Words stories = {"--stories", "20000"};

class Train : public ::testing::Test {
 protected:
  // The lines of a metrics file.
  static std::vector<Json> lines_of(const std::string& file) {
    const std::string text = read_file(file);
    EXPECT_TRUE(text.ends_with("\n"));
    std::vector<Json> lines;
    for (const std::string& line : split(text, '\n'))
      if (!line.empty()) lines.push_back(parse_json(line, file));
    return lines;
  }
  // Losses of a run with these flags, in order.
  std::vector<double> losses(const Words& flags) {
    const std::string file = folder_.file("metrics.jsonl");
    expect_done(Words{"train"} + tiny_run + flags + Words{"--metrics", file});
    std::vector<double> values;
    for (const Json& line : lines_of(file)) {
      if (line.contains("loss")) values.push_back(line["loss"].get<double>());
      if (line.contains("validation_loss")) validation_ = line["validation_loss"].get<double>();
    }
    return values;
  }

  TemporaryFolder folder_;
  double validation_ = 0;  // of the last losses()
};

TEST_F(Train, OnEveryKindOfData) {
  const std::string prefix = folder_.file("stories");
  EXPECT_THAT(expect_done({"tokenize", "--stories", "20K", "--output-prefix", prefix, "--append-eod"}),
              HasSubstr("tokens of 257 ids as uint16"));
  const std::vector<Words> sources = {{"--mock-data"},
                                      stories,
                                      {"--data-path", prefix},
                                      {"--data-path", "0.3", prefix, "0.7", prefix},
                                      {"--train-data-path", prefix, "--valid-data-path", prefix},
                                      {"--text", prefix + ".txt"}};
  for (const Words& source : sources) {
    const std::string log = expect_done(Words{"train"} + tiny_run + source + Words{"--log-interval", "1"});
    for (const char* part :
         {"iteration        3/       3 |", "consumed samples:            6 |", "elapsed time per iteration",
          "throughput", "learning rate: ", "global batch size:     2 |",
          "lm loss: ", "grad norm: ", "time left: ", "validation loss at iteration 3", "trained 3 iterations"})
      EXPECT_THAT(log, HasSubstr(part)) << source[0];
  }
}

TEST_F(Train, ValidatesNothingAtAnIntervalOfZero) {
  EXPECT_THAT(expect_done(Words{"train"} + tiny_run + stories + Words{"--eval-interval", "0"}),
              Not(HasSubstr("validation")));
}

TEST_F(Train, WritesMetricsToFullPrecision) {
  const std::string file = folder_.file("metrics.jsonl");
  expect_done(Words{"train"} + tiny_run + stories + Words{"--metrics", file});
  const std::vector<Json> lines = lines_of(file);
  ASSERT_EQ(lines.size(), 4u) << "one a step and one of the validation";
  for (std::size_t i = 0; i < 3; ++i) {
    const Json& line = lines[i];
    EXPECT_EQ(line.at("iteration"), i + 1);
    EXPECT_EQ(line.at("consumed_samples"), 2 * (i + 1));
    // log(257) by guessing; a fresh model is close to it.
    EXPECT_NEAR(line.at("loss").get<double>(), 5.55, 0.2);
    EXPECT_GT(line.at("grad_norm").get<double>(), 0);
    EXPECT_GT(line.at("step_seconds").get<double>(), 0);
    EXPECT_NEAR(line.at("tokens_per_second").get<double>() * line.at("step_seconds").get<double>(), 32, 1e-9);
    // Linear from 1e-3 to 0 over three steps, to the last bit.
    EXPECT_DOUBLE_EQ(line.at("learning_rate").get<double>(), 1e-3 * static_cast<double>(3 - i) / 3);
    // A float needs nine digits.
    EXPECT_EQ(line.at("loss").get<double>(), static_cast<double>(static_cast<float>(line.at("loss").get<double>())));
  }
  EXPECT_NEAR(lines[3].at("validation_loss").get<double>(), 5.5, 0.2);
}

TEST_F(Train, IsDecidedByItsSeed) {
  const std::vector<double> first = losses(stories + Words{"--seed", "7"});
  ASSERT_EQ(first.size(), 3u);
  EXPECT_EQ(losses(stories + Words{"--seed", "7"}), first) << "bit for bit";
  EXPECT_EQ(losses(stories + Words{"--seed", "7", "--executor", "serial"}), first) << "in any order";
  EXPECT_NE(losses(stories + Words{"--seed", "8"}), first);
}

TEST_F(Train, Precisions) {
  const std::vector<double> f32 = losses(stories), f64 = losses(stories + Words{"--fp64"}),
                            bf16 = losses(stories + Words{"--bf16"});
  ASSERT_EQ(f64.size(), 3u);
  ASSERT_EQ(bf16.size(), 3u);
  for (std::size_t i = 0; i < 3; ++i) {
    EXPECT_NEAR(f32[i], f64[i], 1e-5 * f64[i]);
    // Logits of a fresh model are below 1 in size, and bf16 keeps 8 bits of them.
    EXPECT_NEAR(bf16[i], f64[i], 1.0 / 256) << i;
    EXPECT_NE(bf16[i], f32[i]);
  }
}

TEST_F(Train, SeveralMicroBatchesAreOneBatch) {
  const Words four = {"--global-batch-size", "4", "--fp64"};
  const std::vector<double> parts = losses(stories + four);
  const std::string file = folder_.file("metrics.jsonl");
  Words whole = Words{"train"} + tiny_run + stories + four + Words{"--metrics", file};
  *(std::find(whole.begin(), whole.end(), "--micro-batch-size") + 1) = "4";
  expect_done(whole);
  const std::vector<Json> lines = lines_of(file);
  ASSERT_EQ(parts.size(), 3u);
  for (std::size_t i = 0; i < 3; ++i) EXPECT_NEAR(lines.at(i).at("loss").get<double>(), parts[i], 1e-12) << i;
}

TEST_F(Train, LogsWhatEachDepthOfMtpLoses) {
  const std::string file = folder_.file("metrics.jsonl");
  Words run = Words{"train"} + tiny_run + stories + Words{"--log-interval", "3", "--metrics", file};
  *(std::find(run.begin(), run.end(), "--pattern") + 1) = "[*E]/[*E]/[*E]";
  const std::vector<std::string> log = split(expect_done(run), '\n');
  const std::vector<Json> lines = lines_of(file);
  const auto shown = [&](const char* depth, double loss) {
    return fmt::format("| mtp_{} loss: {:.6E} | ", depth, loss);
  };
  for (const char* depth : {"1", "2"}) {
    const auto loss = [&](std::size_t i) { return lines.at(i).at(fmt::format("mtp_{}_loss", depth)).get<double>(); };
    EXPECT_THAT(
        log, ::testing::Contains(::testing::AllOf(HasSubstr("iteration        1/"), HasSubstr(shown(depth, loss(0))))));
    // As of the main loss, the mean of the steps since the last line.
    EXPECT_THAT(log, ::testing::Contains(::testing::AllOf(HasSubstr("iteration        3/"),
                                                          HasSubstr(shown(depth, (loss(1) + loss(2)) / 2)))));
  }
}

TEST_F(Train, RanksAreOneRun) {
  const Words four = {"--global-batch-size", "4", "--fp64"};
  const std::vector<double> alone = losses(stories + four);
  const double validation = validation_;
  const std::vector<Words> layouts = {{"--ranks", "2"},
                                      {"--ranks", "2", "--expert-model-parallel-size", "2"},
                                      {"--ranks", "2", "--executor", "serial"}};
  for (const Words& layout : layouts) {
    const std::vector<double> together = losses(stories + four + layout);
    ASSERT_EQ(together.size(), alone.size());
    for (std::size_t i = 0; i < alone.size(); ++i) EXPECT_NEAR(together[i], alone[i], 1e-9 * alone[i]) << i;
    EXPECT_NEAR(validation_, validation, 1e-9 * validation);
  }
  const Json report =
      parse_json(expect_done(Words{"verify"} + tiny_run + stories + layouts[1] + Words{"--json"}), "verify");
  EXPECT_EQ(report.at("equal"), true);
  EXPECT_EQ(report.at("steps").size(), 3u);
}

TEST_F(Train, ACapacityBeyondAllTokensDropsNone) {
  const std::vector<double> without = losses(stories);
  EXPECT_EQ(losses(stories + Words{"--moe-expert-capacity-factor", "1e18"}), without);
  EXPECT_EQ(losses(stories + Words{"--moe-expert-capacity-factor", "1e300", "--moe-pad-expert-input-to-capacity"}),
            without);
}

TEST_F(Train, GoesOnWithAModelOfEveryFamily) {
  for (const char* family : {"llama", "mixtral", "qwen3_moe", "deepseek_v3", "deepseek_v32", "gpt_oss", "mamba2",
                             "nemotron_h", "nemotron_h_moe", "qwen3_next"}) {
    const std::string file = folder_.file("metrics.jsonl");
    expect_done({"train", "--hf", golden(family), "--mock-data", "--seq-length", "32", "--micro-batch-size", "1",
                 "--train-iters", "4", "--lr", "1e-2", "--eval-iters", "0", "--metrics", file, "--threads", "1"});
    const std::vector<Json> lines = lines_of(file);
    ASSERT_EQ(lines.size(), 4u) << family;
    EXPECT_LT(lines[3].at("loss"), lines[0].at("loss")) << family;
  }
}

TEST_F(Train, SamplesAndTensorboard) {
  const std::string board = folder_.file("board");
  const std::string log =
      expect_done(Words{"train"} + tiny_run + stories +
                  Words{"--tensorboard-dir", board, "--sample", "Once", "--sample", "The fox", "--sample-length", "8"});
  EXPECT_THAT(log, HasSubstr("--- Once["));
  EXPECT_THAT(log, HasSubstr("--- The fox["));
  std::size_t files = 0;
  for (const auto& entry : std::filesystem::directory_iterator(board)) {
    EXPECT_THAT(entry.path().filename().string(), ::testing::StartsWith("events.out.tfevents."));
    EXPECT_THAT(read_file(entry.path()), HasSubstr("lm loss"));
    ++files;
  }
  EXPECT_EQ(files, 1u);
}

TEST_F(Train, FromAHuggingFaceModel) {
  const std::string log =
      expect_done({"train", "--hf", golden("qwen3_moe"), "--mock-data", "--tokenizer-type", "NullTokenizer",
                   "--seq-length", "16", "--micro-batch-size", "1", "--train-iters", "2", "--eval-iters", "1"});
  EXPECT_THAT(log, HasSubstr("trained 2 iterations"));
}

TEST_F(Train, FeedsALoadedModelNoBytesUnlessAskedTo) {
  const Words run = {"train", "--hf", golden("llama"), "--stories", "20000", "--seq-length", "8", "--train-iters", "1"};
  expect_refused(run, {"--hf " + golden("llama") + ": stories would be read as one token per byte", "use --data-path"});
}

TEST_F(Train, ANumberThatIsNoneStopsTheRun) {
  const std::string file = folder_.file("metrics.jsonl");
  const Outcome outcome = run_weft(
      Words{"train"} + tiny_model + stories +
      Words{"--train-iters", "20", "--lr", "1e30", "--clip-grad", "1e30", "--metrics", file, "--threads", "1"});
  EXPECT_EQ(outcome.code, 1);
  EXPECT_THAT(outcome.err, ::testing::ContainsRegex("^weft: iteration [0-9]+: the (loss|gradient) is not finite"))
      << outcome.err;
  EXPECT_THAT(outcome.err, ::testing::Not(::testing::HasSubstr("-nan")));
  EXPECT_THAT(outcome.err, HasSubstr("weights were left as they were. Lower --lr"));
  EXPECT_THAT(outcome.out, HasSubstr("number of nan iterations:   1"));
  const std::vector<Json> lines = lines_of(file);
  ASSERT_GE(lines.size(), 2u);
  EXPECT_LT(lines.size(), 20u);
  const Json& last = lines.back();
  EXPECT_TRUE(last.at("loss").is_null() || last.at("grad_norm").is_null());
  EXPECT_TRUE(last.contains("note")) << "JSON has no NaN; the note names it";
}

TEST_F(Train, WeightsThatAreNotFiniteAreToBlameForTheFirstStep) {
  const std::string model = folder_.file("model"), file = model + "/model.safetensors";
  std::filesystem::copy(golden("llama"), model);
  std::string last;  // of the tensors in the file
  {
    const SafetensorsFile weights(file);
    const auto end = [](const TensorEntry& entry) { return entry.bytes.data() + entry.bytes.size(); };
    last = std::max_element(weights.entries().begin(), weights.entries().end(), [&](const auto& a, const auto& b) {
             return end(a) < end(b);
           })->name;
  }
  std::string bytes = read_file(file);
  bytes.replace(bytes.size() - 4, 4, std::string("\0\0\xc0\x7f", 4));  // a NaN
  std::ofstream(file, std::ios::binary) << bytes;
  const Outcome outcome =
      run_weft({"train", "--hf", model, "--mock-data", "--seq-length", "8", "--eval-iters", "0", "--threads", "1"});
  EXPECT_EQ(outcome.code, 1);
  EXPECT_THAT(outcome.err, HasSubstr("weft: iteration 1: the loss is not finite"));
  EXPECT_THAT(outcome.err, HasSubstr("The model in " + model + " is damaged: weights of '" + last +
                                     "' are not finite; get a good copy"));
  EXPECT_THAT(outcome.err, Not(HasSubstr("--lr")));
  const Outcome wild = run_weft(Words{"train"} + tiny_run + stories + Words{"--init-method-std", "1e300"});
  EXPECT_EQ(wild.code, 1);
  EXPECT_THAT(wild.err, HasSubstr("No step has changed a weight yet: lower --init-method-std, or look at the data"));
}

TEST_F(Train, WithoutClippingThereIsNoNorm) {
  const std::string file = folder_.file("metrics.jsonl");
  const Words run = Words{"train"} + tiny_model + stories + Words{"--clip-grad", "0", "--threads", "1"};
  const std::string log = expect_done(run + Words{"--train-iters", "3", "--metrics", file});
  EXPECT_THAT(log, ::testing::Not(HasSubstr("grad norm")));
  for (const Json& line : lines_of(file)) EXPECT_FALSE(line.contains("grad_norm"));
  const Outcome outcome = run_weft(run + Words{"--train-iters", "20", "--lr", "1e30"});
  EXPECT_EQ(outcome.code, 1);
  EXPECT_THAT(outcome.err, HasSubstr("gradient norm not computed: --clip-grad 0"));
  EXPECT_THAT(outcome.err, HasSubstr("weights were left as the step before made them, finite or not"));
}

// Also before a rank computes: its updates come first here, and ranks begin at different times.
TEST_F(Train, RecordsMemoryFromTheBeginningOfTheStepOn) {
  const std::string file = folder_.file("trace.json");
  expect_done(Words{"train"} + tiny_run + stories + Words{"--ranks", "2", "--overlap-optimizer", "--trace", file});
  const Json trace = parse_json(read_file(file), file);
  std::vector<double> first(2, -1);
  for (const Json& event : trace.at("traceEvents"))
    if (event.at("ph") == "C" && event.at("ts") == 0.0) first.at(event.at("pid")) = event.at("args").at("bytes");
  EXPECT_GT(first[0], 0);
  EXPECT_EQ(first[0], first[1]);
}

TEST_F(Train, OutputsThatCannotBeWritten) {
  const std::string none = folder_.file("none/file");
  for (const char* flag : {"--metrics", "--trace", "--timeline"})
    expect_refused(Words{"train"} + tiny_run + stories + Words{flag, none},
                   {std::string(flag) + " " + none + ": there is no folder ", "; make it first"});
  expect_refused(Words{"train"} + tiny_run + stories + Words{"--metrics", folder_.file("")}, {"name a file in it"});
  EXPECT_EQ(folder_.entries(), 0u);
}

// A whole run started by the shell: what it printed on both streams.
Outcome run_shell(const std::string& script) {
  Outcome outcome;
  std::FILE* pipe = ::popen(("exec 2>&1; " + script).c_str(), "r");
  for (int c = std::fgetc(pipe); c != EOF; c = std::fgetc(pipe)) outcome.out += static_cast<char>(c);
  outcome.code = WEXITSTATUS(::pclose(pipe));
  return outcome;
}

TEST_F(Train, GoesOnWithoutMetricsThatTheDiskDoesNotTake) {
  const std::string file = folder_.file("metrics.jsonl"), board = folder_.file("board");
  std::string run = "ulimit -f 1; trap '' XFSZ; " WEFT_BINARY_DIR "/weft train";  // files of at most 512 or 1024 bytes
  for (const std::string& word : tiny_model + stories +
                                     Words{"--train-iters", "9", "--eval-iters", "1", "--threads", "1", "--metrics",
                                           file, "--tensorboard-dir", board})
    run += " '" + word + "'";
  const Outcome outcome = run_shell(run);
  EXPECT_EQ(outcome.code, 0);
  EXPECT_THAT(outcome.out, HasSubstr("trained 9 iterations"));
  const std::string goes_on = "File too large; training goes on without it\n";
  EXPECT_THAT(outcome.out, ::testing::ContainsRegex("warning: cannot write the metrics to " + file + ": " + goes_on));
  EXPECT_THAT(outcome.out, ::testing::ContainsRegex("warning: cannot write " + board + "/events.*: " + goes_on));
  EXPECT_EQ(split(outcome.out, '\n').size(),
            split(expect_done(Words{"train"} + tiny_model + stories +
                              Words{"--train-iters", "9", "--eval-iters", "1", "--threads", "1"}),
                  '\n')
                    .size() +
                2)
      << "each is printed once";
}

TEST_F(Train, LooksForWhatWouldEndItBeforeTheFirstStep) {
  const Words run = {"train",         "--hf", golden("llama"), "--mock-data", "--seq-length", "8",
                     "--train-iters", "1",    "--eval-iters",  "0",           "--threads",    "1"};
  expect_refused(run + Words{"--save-hf", "/sys/out"},
                 {"--save-hf /sys/out: cannot make the folder /sys/out.tmp-", "; name a folder that can be made"});
  const Words bytes = {"--tokenizer-type", "ByteTokenizer"}, numbers = {"--tokenizer-type", "NullTokenizer"};
  expect_refused(run + Words{"--sample", "Once"}, {"--sample 'Once': the model in", "has a tokenizer of its own"});
  expect_refused(run + bytes + Words{"--sample", "Once"},
                 {"--sample 'Once': its token 110 is outside the model's vocabulary of 96; --tokenizer-type "});
  expect_refused(run + bytes + Words{"--sample", ""}, {"--sample '': its token 256 is outside"});
  expect_refused(run + numbers + Words{"--sample", "hello"}, {"--sample 'hello': NullTokenizer reads whole numbers"});
  expect_refused(run + numbers + Words{"--sample", "96"}, {"--sample '96': token 96 at byte 0 is outside"});
  EXPECT_THAT(expect_done(run + numbers + Words{"--sample", "1 2 3", "--sample-length", "2"}), HasSubstr("--- 1 2 3["));
  std::filesystem::create_directory(folder_.file("empty"));
  for (const char* name : {"new", "empty"}) {
    const std::string out = folder_.file(name);
    run_weft(run + Words{"--save-hf", out, "--sample", "Once"});  // refused after the trial
    EXPECT_EQ(std::filesystem::exists(out), name == std::string("empty")) << "as it was";
    EXPECT_EQ(folder_.entries(), 1u);
  }
}

TEST_F(Train, RefusesWhatItCouldNotShowOrHold) {
  for (const char* flag : {"--trace", "--timeline"})
    expect_refused(Words{"train"} + tiny_run + Words{"--executor", "serial", flag, "step.out"},
                   {flag, "shows lanes at work, and the serial executor has none; use --executor parallel"});
  expect_refused({"train", "--inject-fault", "boom@1:0"}, {"--inject-fault 'boom@1:0': not KIND@NODE:RANK"});
  const Words mixtral = {"train", "--hf", golden("mixtral"), "--mock-data"};
  expect_refused(mixtral + Words{"--seq-length", "100000"},
                 {"--seq-length 100000: the model in", "is made for at most", "max_position_embeddings"});
  expect_refused(mixtral + Words{"--moe-router-enable-expert-bias", "--seq-length", "16"},
                 {"--moe-router-enable-expert-bias: the model in", "has no such bias; drop the flag"});
}

// Threads get stacks as large as the limit: with a size that no machine has, none starts.
class StacksBeyondMemory {
 public:
  StacksBeyondMemory() {
    ::getrlimit(RLIMIT_STACK, &before_);
    rlimit huge = before_;
    huge.rlim_cur = rlim_t{1} << 40;
    set_ = ::setrlimit(RLIMIT_STACK, &huge) == 0;
  }
  ~StacksBeyondMemory() { ::setrlimit(RLIMIT_STACK, &before_); }
  bool set() const { return set_; }

 private:
  rlimit before_{};
  bool set_ = false;
};

TEST_F(Train, ThreadsThatCannotStartAreNamed) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "sanitizers start threads of their own";
#endif
  int overcommit = 1;
  std::ifstream("/proc/sys/vm/overcommit_memory") >> overcommit;
  const StacksBeyondMemory stacks;
  if (overcommit == 1 || !stacks.set()) GTEST_SKIP() << "this machine gives every thread the stack it asks for";
  const auto error_of = [&](const Words& flags) {
    const Outcome outcome =
        run_weft(Words{"train", "--pattern", "-", "--hidden-size", "16", "--stories", "20000"} + flags);
    EXPECT_EQ(outcome.code, 1);
    return outcome.err;
  };
  EXPECT_THAT(error_of({"--ranks", "2", "--threads", "1"}),
              HasSubstr("weft: 2 ranks need a thread each, and rank 0's could not be started (Resource temporarily "
                        "unavailable): use fewer --ranks, or raise the limit on processes or memory\n"));
  EXPECT_THAT(error_of({"--threads", "2"}),
              HasSubstr("weft: one of 2 compute threads could not be started (Resource temporarily "
                        "unavailable): use fewer --threads, or raise the limit on processes or memory\n"));
  EXPECT_THAT(
      error_of({"--threads", "1", "--overlap-optimizer"}),
      HasSubstr("weft: the 2 lanes of a step need a thread each, and one could not be started (Resource "
                "temporarily unavailable): raise the limit on processes or memory, or use --executor serial\n"));
}

}  // namespace
}  // namespace weft
