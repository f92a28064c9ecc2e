// What happens to trained weights when something goes wrong: numbers, disks, data.
#include <cstdio>
#include <filesystem>
#include <thread>

#include <fmt/format.h>
#include <sys/wait.h>

#include "tests/apps/weft_process.h"
#include "weft/base/file.h"
#include "weft/base/text.h"

namespace weft {
namespace {

using testing::HasSubstr;
using testing::Not;

std::string quoted(const Words& words) {
  std::string text = WEFT_BINARY_DIR "/weft";
  for (const std::string& word : words) text += " '" + word + "'";
  return text;
}

// Both streams in `out`.
Outcome run_shell(const std::string& command) {
  Outcome outcome;
  FILE* const pipe = ::popen(("exec 2>&1; " + command).c_str(), "r");
  if (pipe == nullptr) return outcome;
  char part[4096];
  while (const std::size_t n = std::fread(part, 1, sizeof part, pipe)) outcome.out.append(part, n);
  const int status = ::pclose(pipe);
  outcome.code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  return outcome;
}

class Saving : public testing::Test {
 protected:
  Words model(std::int64_t iterations) const {
    return {"train",
            "--device",
            "cpu",
            "--hf",
            golden("llama"),
            "--mock-data",
            "--seq-length",
            "16",
            "--micro-batch-size",
            "1",
            "--train-iters",
            std::to_string(iterations),
            "--eval-iters",
            "0",
            "--threads",
            "1"};
  }
  // Starts in milliseconds.
  Words tiny(int iterations, const std::string& rate, const std::string& eval_iters = "0") const {
    return Words{"train", "--device", "cpu"} + tiny_model +
           Words{"--stories", "20000", "--threads",    "1",        "--lr-decay-style", "constant",
                 "--lr",      rate,    "--eval-iters", eval_iters, "--train-iters",    std::to_string(iterations)};
  }
  // The checkpoint of an iteration has the weights and moments that a run has which ends there.
  void expect_state_of(const Words& words, int iteration) const {
    expect_done(words + Words{"--save", folder_.file("straight"), "--exit-interval", std::to_string(iteration)});
    const std::string name = fmt::format("/iter_{:07}", iteration);
    const std::string same = expect_done({"inspect", "--diff", dir_ + name, folder_.file("straight") + name});
    EXPECT_THAT(same, HasSubstr("\n66 tensors by name: 66 equal bit for bit\n"));
  }
  // Whose weights are not finite, or soon will be.
  Words diverging(std::int64_t iterations) const {
    return model(iterations) + Words{"--lr", "1e30", "--lr-decay-style", "constant"};
  }

  TemporaryFolder folder_;
  std::string out_ = folder_.file("out"), dir_ = folder_.file("run");
};

TEST_F(Saving, AModelThatIsNotFiniteIsNotWritten) {
  const Outcome outcome = run_weft(diverging(2) + Words{"--clip-grad", "0", "--save-hf", out_});
  EXPECT_EQ(outcome.code, 1) << outcome.out;
  EXPECT_THAT(outcome.err, HasSubstr("not finite"));
  EXPECT_EQ(folder_.entries(), 0u);
  const Outcome saved = run_weft(diverging(2) + Words{"--clip-grad", "0", "--save", dir_});
  EXPECT_EQ(saved.code, 1) << saved.out;
  EXPECT_THAT(saved.err, HasSubstr("not finite"));
  EXPECT_FALSE(std::filesystem::exists(dir_ + "/iter_0000002"));
}

TEST_F(Saving, AJumpOfTheLossIsRemarked) {
  const Outcome outcome = run_weft(model(2) + Words{"--lr", "10", "--lr-decay-style", "constant"});
  EXPECT_THAT(outcome.out, testing::ContainsRegex("warning: iteration 2: the loss jumps from about .* to .*; if it"));
}

TEST_F(Saving, AValidationLossThatIsNotFiniteIsAnError) {
  // 1e30 would make weights so large that norms divide them to zero.
  Words words = model(1) + Words{"--lr", "1e15", "--lr-decay-style", "constant"};
  for (std::size_t i = 0; i < words.size(); ++i)
    if (words[i] == "--eval-iters") words[i + 1] = "1";
  const Outcome outcome = run_weft(words);
  EXPECT_EQ(outcome.code, 1) << outcome.out;
  EXPECT_THAT(outcome.err, HasSubstr("the validation loss at iteration 1 is not finite"));
  EXPECT_THAT(outcome.err, HasSubstr("Lower --lr"));
  EXPECT_THAT(outcome.out, Not(HasSubstr("PPL")));
}

TEST_F(Saving, StepsThatAreNotFiniteAreSkippedAsOftenAsAllowed) {
  const Outcome outcome = run_weft(diverging(9) + Words{"--skip-nonfinite-steps", "3", "--log-interval", "3"});
  EXPECT_EQ(outcome.code, 1) << outcome.out;
  EXPECT_THAT(outcome.err, HasSubstr("not finite, after 3 that were skipped"));
  EXPECT_THAT(outcome.out, HasSubstr("is not finite; the step is skipped\n"));
  EXPECT_THAT(outcome.out, testing::ContainsRegex("number of skipped iterations:   [12] .* nan iterations:   [12] "));
  expect_refused(model(2) + Words{"--skip-nonfinite-steps", "3", "--clip-grad", "0"},
                 {"--skip-nonfinite-steps 3: with --clip-grad 0 gradients are not checked; clip them"});
}

std::string digest_in(const std::string& output) {
  const std::size_t at = output.find("digest");
  return at == std::string::npos ? "none in: " + output : output.substr(at, output.find('\n', at) - at);
}

TEST_F(Saving, AStepThatIsNotFiniteLeavesTheStateBeforeIt) {
  const Words words = tiny(6, "1e30");
  const Outcome outcome = run_weft(words + Words{"--save", dir_});
  EXPECT_EQ(outcome.code, 1) << outcome.out;
  EXPECT_THAT(outcome.err, HasSubstr("iteration 2: the "));
  EXPECT_THAT(outcome.err, HasSubstr("weights were left as they were"));
  EXPECT_THAT(outcome.out, HasSubstr("saved " + dir_ + "/iter_0000001 in "));
  EXPECT_EQ(read_file(dir_ + "/latest_checkpointed_iteration.txt"), "1");
  expect_state_of(words, 1);
  // It goes on as a run of which that step was skipped.
  const Words skipping = words + Words{"--skip-nonfinite-steps", "9", "--digest"};
  EXPECT_EQ(digest_in(expect_done(skipping + Words{"--load", dir_})), digest_in(expect_done(skipping)));
}

TEST_F(Saving, AnErrorWithinAStepLeavesTheStateBeforeIt) {
  const Outcome outcome = run_weft(tiny(6, "1e-3") + Words{"--save", dir_, "--inject-fault", "error@8:0:4"});
  EXPECT_EQ(outcome.code, 1) << outcome.out;
  EXPECT_THAT(outcome.err, HasSubstr("node 8, "));
  EXPECT_THAT(outcome.out, HasSubstr("saved " + dir_ + "/iter_0000003 in "));
  expect_state_of(tiny(6, "1e-3"), 3);
  const Words whole = tiny(6, "1e-3") + Words{"--digest"};
  EXPECT_EQ(digest_in(expect_done(whole + Words{"--load", dir_})), digest_in(expect_done(whole)));
}

TEST_F(Saving, AValidationThatIsNotFiniteLeavesTheStateOfItsStep) {
  const Words words = tiny(100, "1e15", "1");
  const Outcome outcome = run_weft(words + Words{"--save", dir_, "--eval-interval", "1"});
  EXPECT_EQ(outcome.code, 1) << outcome.out;
  EXPECT_THAT(outcome.err, HasSubstr("the validation loss at iteration 1 is not finite"));
  EXPECT_THAT(outcome.out, HasSubstr("saved " + dir_ + "/iter_0000001 in "));
  expect_state_of(words, 1);
  const Words skipping = words + Words{"--exit-interval", "3", "--skip-nonfinite-steps", "9", "--digest"};
  EXPECT_EQ(digest_in(expect_done(skipping + Words{"--load", dir_})), digest_in(expect_done(skipping)));
}

// A run that is saved amid skipped steps is the same run: what it has skipped counts.
TEST_F(Saving, SkippedStepsCountAcrossAStop) {
  const Words words = tiny(9, "1e30") + Words{"--skip-nonfinite-steps", "3"};
  const std::string error = run_weft(words).err;
  EXPECT_THAT(error, HasSubstr("iteration 5: the "));
  expect_done(words + Words{"--save", dir_, "--exit-interval", "3"});
  const Outcome resumed = run_weft(words + Words{"--load", dir_});
  EXPECT_EQ(resumed.code, 1) << resumed.out;
  EXPECT_EQ(resumed.err, error);
}

TEST_F(Saving, AJumpOfTheLossIsRemarkedAfterAStop) {
  const auto remark = [](const std::string& output) {
    const std::size_t at = output.find("warning: iteration 2: the loss jumps from about ");
    return at == std::string::npos ? "none in: " + output : output.substr(at, output.find('\n', at) - at);
  };
  const std::string straight = remark(expect_done(tiny(2, "10")));
  EXPECT_THAT(straight, HasSubstr(" jumps "));
  expect_done(tiny(2, "10") + Words{"--save", dir_, "--exit-interval", "1"});
  EXPECT_EQ(remark(expect_done(tiny(2, "10") + Words{"--load", dir_})), straight);
}

TEST_F(Saving, AFolderThatIsLostIsReplacedByTheFallback) {
  std::filesystem::create_directory(folder_.file("disk"));
  const std::string fallback = folder_.file("fallback");
  const Words words = model(3000) + Words{"--save-hf", folder_.file("disk/out"), "--save-fallback", fallback,
                                          "--metrics", folder_.file("m")};
  // Its disk goes away after the first step.
  const Outcome outcome =
      run_shell(fmt::format("{} & while kill -0 $! && ! [ -s {} ]; do sleep 0.01; done; rm -r {}; wait $!",
                            quoted(words), folder_.file("m"), folder_.file("disk")));
  EXPECT_EQ(outcome.code, 0) << outcome.out;
  EXPECT_THAT(outcome.out, HasSubstr("warning: --save-hf " + folder_.file("disk/out") + ": cannot make the folder"));
  EXPECT_THAT(outcome.out, HasSubstr("model: " + fallback + "\n"));
  EXPECT_TRUE(std::filesystem::exists(fallback + "/model.safetensors"));
}

TEST_F(Saving, AModelThatCannotBeWrittenIsTriedAgain) {
  const std::string disk = folder_.file("disk"), m = folder_.file("m");
  std::filesystem::create_directory(disk);
  for (const bool saved : {false, true}) {
    std::filesystem::remove_all(disk);
    std::filesystem::create_directory(disk);
    std::filesystem::remove(m);
    Words words = model(3000) + Words{"--save-hf", disk + "/out", "--metrics", m};
    if (saved) words = words + Words{"--save", dir_};
    // Its disk goes away after the first step, and is back when the model was tried to be written.
    const std::string log = folder_.file("log");
    const Outcome outcome =
        run_shell(fmt::format("{0} >{1} 2>&1 & while kill -0 $! && ! [ -s {2} ]; do sleep 0.01; done; rm -r {3}; "
                              "while kill -0 $! && ! grep -q 'trying again' {1}; do sleep 0.01; done; mkdir {3}; "
                              "wait $!; code=$?; cat {1}; exit $code",
                              quoted(words), log, m, disk));
    EXPECT_EQ(outcome.code, saved ? 1 : 0) << outcome.out;
    EXPECT_EQ(std::filesystem::exists(disk + "/out/model.safetensors"), !saved);
    EXPECT_THAT(outcome.out, HasSubstr(saved ? "the checkpoint of iteration 3000 in " + dir_ + " has its weights"
                                             : "the model is not written yet: free space; trying again in 1 s\n"));
  }
}

TEST_F(Saving, AFileThatIsTooLargeIsAnErrorAndNotASignal) {
  const Outcome outcome = run_shell("ulimit -f 8; " + quoted(model(1) + Words{"--save", dir_}));
  EXPECT_EQ(outcome.code, 1) << outcome.out;
  EXPECT_THAT(outcome.out, HasSubstr("rank-00000.safetensors: write: File too large"));
}

class BadData : public Saving {
 protected:
  BadData() {
    expect_done({"tokenize", "--stories", "64K", "--output-prefix", data_});
    tokens_ = read_file(data_ + ".bin");
  }
  Words run(const std::string& iterations) const {
    return Words{"train", "--device", "cpu"} + tiny_model +
           Words{"--data-path",
                 data_,
                 "--split",
                 "100,0,0",
                 "--train-iters",
                 iterations,
                 "--eval-iters",
                 "0",
                 "--threads",
                 "1",
                 "--ranks",
                 "2",
                 "--global-batch-size",
                 "8",
                 "--digest",
                 "--save",
                 dir_,
                 "--expert-model-parallel-size",
                 "2"};
  }
  std::string data_ = folder_.file("data"), tokens_;
};

// One rank finds it, at some step; what all ranks have come to is saved.
TEST_F(BadData, SavesTheStateBeforeIt) {
  std::string bad = tokens_;
  for (std::size_t at = bad.size() / 2; at < bad.size() / 2 + 8; ++at) bad[at] = '\xff';
  write_file_atomically(data_ + ".bin", bad);
  const Outcome outcome = run_weft(run("2000"));
  EXPECT_EQ(outcome.code, 2) << outcome.out;
  EXPECT_THAT(outcome.err, HasSubstr("is outside the vocabulary of"));
  const std::string saved = read_file(dir_ + "/latest_checkpointed_iteration.txt");
  EXPECT_THAT(outcome.out, HasSubstr(fmt::format("saved {}/iter_{:07}", dir_, std::stoi(saved))));
  // With good data the run goes on as if nothing had been.
  write_file_atomically(data_ + ".bin", tokens_);
  const Words two_more = run("2000") + Words{"--exit-interval", std::to_string(std::stoi(saved) + 2)};
  const std::string resumed = expect_done(two_more + Words{"--load", dir_});
  std::filesystem::remove_all(dir_);
  const std::string straight = expect_done(two_more);
  EXPECT_EQ(resumed.substr(resumed.find("digest")), straight.substr(straight.find("digest")));
}

TEST_F(BadData, AFileThatShrinksDuringTheRunIsNamed) {
  for (const std::string file : {".bin", ".idx"}) {
    expect_done({"tokenize", "--stories", "64K", "--overwrite", "--output-prefix", data_});
    const std::string m = folder_.file("m");
    std::filesystem::remove(m);
    const Outcome outcome =
        run_shell(fmt::format("{} & while kill -0 $! && ! [ -s {} ]; do sleep 0.01; done; truncate -s 0 {}; wait $!",
                              quoted(run("200000") + Words{"--metrics", m}), m, data_ + file));
    EXPECT_EQ(outcome.code, 1) << outcome.out;
    EXPECT_THAT(outcome.out, HasSubstr("weft: cannot read " + data_ + file + ": it has become shorter since it was"));
  }
}

}  // namespace
}  // namespace weft
