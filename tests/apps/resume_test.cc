// Saving, ending and going on, as a user does it.
#include <algorithm>
#include <cstdlib>
#include <filesystem>

#include <nlohmann/json.hpp>

#include "tests/apps/weft_process.h"
#include "weft/base/file.h"
#include "weft/base/text.h"
#include "weft/comm/mpi_world.h"

namespace weft {
namespace {

using testing::HasSubstr;
using testing::Not;

// Losses and norms by iteration, as the metrics have them.
std::string numbers_in(const std::string& metrics) {
  std::string text;
  for (const std::string& line : split(read_file(metrics), '\n')) {
    if (line.empty()) continue;
    const auto json = nlohmann::json::parse(line);
    if (json.contains("loss"))
      text += fmt::format("{} {} {}\n", json["iteration"].dump(), json["loss"].dump(), json["grad_norm"].dump());
  }
  return text;
}

// The losses in the log, iteration by iteration.
std::string losses_in(const std::string& output) {
  std::string text;
  for (const std::string& line : split(output, '\n')) {
    const std::size_t iteration = line.find("iteration "), loss = line.find("lm loss: "),
                      validation = line.find("lm loss value");
    if (iteration == std::string::npos) continue;
    if (loss != std::string::npos) text += line.substr(iteration, 25) + line.substr(loss, 22) + "\n";
    if (validation != std::string::npos) text += line.substr(0, validation + 30) + "\n";
  }
  return text;
}

std::string digest_in(const std::string& output) { return output.substr(output.find("digest")); }

class Resume : public testing::Test {
 protected:
  const Words run_ = Words{"train", "--device", "cpu"} + tiny_model +
                     Words{"--train-iters",
                           "8",
                           "--eval-iters",
                           "0",
                           "--threads",
                           "1",
                           "--ranks",
                           "2",
                           "--global-batch-size",
                           "16",
                           "--digest",
                           "--expert-model-parallel-size",
                           "2",
                           "--stories",
                           "20000"};
  TemporaryFolder folder_;
};

TEST_F(Resume, GoesOnWithoutAGapOrARepeat) {
  const std::string straight = folder_.file("straight"), resumed = folder_.file("resumed"), dir = folder_.file("run");
  const std::string whole = expect_done(run_ + Words{"--metrics", straight});
  const Words in_parts = run_ + Words{"--save", dir, "--load", dir, "--metrics", resumed};
  EXPECT_THAT(expect_done(in_parts + Words{"--exit-interval", "3"}),
              HasSubstr(fmt::format("there is no checkpoint in {}; the run starts from random weights", dir)));
  EXPECT_THAT(expect_done(in_parts + Words{"--exit-interval", "5"}),
              HasSubstr(fmt::format("loaded {}/iter_0000003, iteration 3\n", dir)));
  const std::string last = expect_done(in_parts);
  EXPECT_EQ(digest_in(last), digest_in(whole));
  EXPECT_EQ(numbers_in(resumed), numbers_in(straight));
  EXPECT_EQ(read_file(dir + "/latest_checkpointed_iteration.txt"), "8");
  // A killed run has written more to its metrics than to its last checkpoint: what follows is not there twice.
  expect_done(in_parts + Words{"--ckpt-step", "5"});
  EXPECT_EQ(numbers_in(resumed), numbers_in(straight));
}

// Means of the log are those of a run that was never stopped, wherever the stops are.
TEST_F(Resume, HasTheLogOfAStraightRun) {
  const std::string dir = folder_.file("run");
  Words run = run_ + Words{"--log-interval", "3", "--eval-interval", "4"};
  for (std::size_t i = 0; i < run.size(); ++i)
    if (run[i] == "--eval-iters") run[i + 1] = "1";
  const std::string straight = losses_in(expect_done(run));
  EXPECT_EQ(std::count(straight.begin(), straight.end(), '\n'), 1 + 2 + 2) << straight;
  std::string in_parts;
  for (const char* stop : {"2", "4", "5", "8"})
    in_parts += losses_in(expect_done(run + Words{"--save", dir, "--load", dir, "--exit-interval", stop}));
  EXPECT_EQ(in_parts, straight);
}

TEST_F(Resume, FromCheckpointsWrittenBesideSteps) {
  const std::string dir = folder_.file("run");
  const std::string straight = expect_done(run_);
  const std::string saved = expect_done(run_ + Words{"--save", dir, "--save-interval", "3", "--async-save"});
  EXPECT_EQ(digest_in(saved), digest_in(straight));
  for (const char* iteration : {"3", "6", "8"})
    EXPECT_THAT(saved, HasSubstr(fmt::format("saved {}/iter_000000{} in ", dir, iteration)));
  for (const char* iteration : {"3", "6"})
    EXPECT_EQ(digest_in(expect_done(run_ + Words{"--load", dir, "--ckpt-step", iteration})), digest_in(straight));
  expect_refused(run_ + Words{"--save", dir, "--async-save"}, {"--async-save: only checkpoints between steps"});
}

TEST_F(Resume, UnderMpi) {
  if (std::system("command -v mpirun > /dev/null") != 0) GTEST_SKIP() << "mpirun is not installed";
  if (mpi_version().starts_with("not built in")) GTEST_SKIP() << "MPI is " << mpi_version();
  const std::string dir = folder_.file("run"), straight = expect_done(run_);
  const auto under_mpi = [&](const std::string& further) {
    const std::string log = folder_.file("log");
    std::string command =
        fmt::format("timeout 60 mpirun --allow-run-as-root --oversubscribe -n 2 {}/weft", WEFT_BINARY_DIR);
    for (std::size_t i = 0; i < run_.size(); ++i)
      if (run_[i] == "--ranks")
        ++i;
      else
        command += " '" + run_[i] + "'";
    EXPECT_EQ(std::system(fmt::format("{} {} > {} 2>&1", command, further, log).c_str()), 0) << read_file(log);
    return read_file(log);
  };
  under_mpi(fmt::format("--save {0} --load {0} --save-interval 2 --async-save --exit-interval 5", dir));
  EXPECT_EQ(read_file(dir + "/latest_checkpointed_iteration.txt"), "5");
  for (const char* step : {"2", "4", "5"})
    EXPECT_THAT(under_mpi(fmt::format("--load {} --ckpt-step {}", dir, step)), HasSubstr(digest_in(straight))) << step;
}

TEST_F(Resume, KeepsTheLastAndTheRetained) {
  const std::string dir = folder_.file("run");
  expect_done(run_ + Words{"--save", dir, "--save-interval", "1", "--keep-last", "2", "--save-retain-interval", "3"});
  for (int iteration = 1; iteration <= 8; ++iteration)
    EXPECT_EQ(std::filesystem::exists(fmt::format("{}/iter_{:07}", dir, iteration)),
              iteration % 3 == 0 || iteration >= 7)
        << iteration;
}

TEST_F(Resume, OtherWaysToLoad) {
  const std::string dir = folder_.file("run");
  expect_done(run_ + Words{"--save", dir, "--exit-interval", "4", "--no-save-optim"});
  expect_refused(
      run_ + Words{"--load", dir},
      {dir + "/iter_0000004: the optimizer's state is not in the checkpoint (the first moment of language.main.",
       "); load it with --no-load-optim or --finetune"});
  EXPECT_THAT(expect_done(run_ + Words{"--load", dir, "--no-load-optim"}),
              HasSubstr("iteration 4, without the optimizer's state\n"));
  EXPECT_THAT(expect_done(run_ + Words{"--load", dir, "--finetune"}),
              HasSubstr("iteration 4; the run counts from 0 (--finetune)\n"));
  expect_refused(
      run_ + Words{"--load", dir, "--ckpt-step", "3"},
      {"--ckpt-step 3: there is no " + dir + "/iter_0000003; the checkpoints in " + dir + " are of iterations 4"});
  expect_refused(run_ + Words{"--save", "/sys/out"},
                 {"--save /sys/out: ", "; name a folder that can be made and written to"});
  expect_refused(run_ + Words{"--save-interval", "3"}, {"--save-interval 3: nothing is saved; set --save DIR"});
  expect_refused(run_ + Words{"--finetune"}, {"--finetune: nothing is loaded; set --load DIR"});
}

TEST_F(Resume, TakesADamagedCheckpointOnlyForWhatItIs) {
  const std::string dir = folder_.file("run");
  expect_done(run_ + Words{"--save", dir, "--save-interval", "4"});
  std::filesystem::resize_file(dir + "/iter_0000008/rank-00000.safetensors", 1000);
  expect_refused(run_ + Words{"--load", dir}, {dir + "/iter_0000008/rank-00000.safetensors: it has 1000 bytes, but"});
  const Outcome older = run_weft(run_ + Words{"--load", dir, "--load-last-complete"});
  EXPECT_EQ(older.code, 0);
  EXPECT_THAT(older.err, HasSubstr("; looking for another checkpoint\n"));
  EXPECT_THAT(older.out, HasSubstr("loaded " + dir + "/iter_0000004, iteration 4\n"));
}

TEST_F(Resume, ATimeLimitSavesAndExitsWithZero) {
  const std::string dir = folder_.file("run");
  Words endless = run_;
  *std::find(endless.begin(), endless.end(), "8") = "100000000";
  const std::string output = expect_done(endless + Words{"--save", dir, "--exit-duration-in-mins", "0.005"});
  const std::string iteration = read_file(dir + "/latest_checkpointed_iteration.txt");
  EXPECT_THAT(output, HasSubstr("stopped after iteration " + iteration + ": --exit-duration-in-mins 0.005\n"));
  // It is a run like any other, and the time counts anew.
  const Words two_more = endless + Words{"--exit-interval", std::to_string(std::stoi(iteration) + 2)};
  EXPECT_EQ(digest_in(expect_done(two_more + Words{"--load", dir, "--exit-duration-in-mins", "1"})),
            digest_in(expect_done(two_more)));
}

// Each part has a file of its own, which tells TensorBoard to forget what the part before has written after its checkpoint.
TEST_F(Resume, TellsTensorboardWhereItGoesOn) {
  const std::string dir = folder_.file("run"), board = folder_.file("board");
  const Words run = run_ + Words{"--save", dir, "--load", dir, "--tensorboard-dir", board};
  expect_done(run + Words{"--exit-interval", "5"});
  expect_done(run + Words{"--exit-interval", "8"});
  std::vector<std::string> files;
  for (const auto& entry : std::filesystem::directory_iterator(board))
    files.push_back(read_file(entry.path().string()));
  ASSERT_EQ(files.size(), 2u);
  // An event's step (field 2) and session log (field 7) with the status START (field 1).
  const std::string restart = "\x10\x06\x3a\x02\x08\x01";
  const auto restarts = [&](const std::string& bytes) { return bytes.find(restart) != std::string::npos; };
  EXPECT_EQ(std::count_if(files.begin(), files.end(), restarts), 1);
}

// As Megatron does, which sees no checkpoint; but it says what to do.
TEST_F(Resume, WithoutTheFileThatNamesItNoCheckpointIsLoaded) {
  const std::string dir = folder_.file("run");
  expect_done(run_ + Words{"--save", dir, "--save-interval", "4"});
  std::filesystem::remove(dir + "/latest_checkpointed_iteration.txt");
  const Outcome fresh = run_weft(run_ + Words{"--load", dir, "--exit-interval", "1"});
  EXPECT_EQ(fresh.code, 0);
  EXPECT_EQ(fresh.err, "warning: " + dir +
                           " has no latest_checkpointed_iteration.txt, which names the checkpoint to go on from; "
                           "the newest there is " +
                           dir + "/iter_0000008: --ckpt-step 8 loads it\n");
  EXPECT_THAT(fresh.out, HasSubstr("no checkpoint in " + dir + " is loaded; the run starts from random weights"));
  EXPECT_THAT(expect_done(run_ + Words{"--load", dir, "--ckpt-step", "4"}), HasSubstr("iter_0000004, iteration 4\n"));
  const std::string note = run_weft(run_ + Words{"--load", dir, "--use-checkpoint-args", "--exit-interval", "1"}).err;
  EXPECT_THAT(note, HasSubstr("--use-checkpoint-args: " + dir + " has no latest_checkpointed_iteration.txt"));
  expect_refused(
      {"convert", "--from", "weft", "--to", "weft", "--in", dir, "--out", folder_.file("out")},
      {dir +
       ": there is no latest_checkpointed_iteration.txt, which names the checkpoint to read; name a folder in "
       "it, the newest is " +
       dir + "/iter_0000008"});
}

TEST_F(Resume, ARunThatWentBackIsNotConfusedByWhatItLeftBehind) {
  const std::string dir = folder_.file("run");
  expect_done(run_ + Words{"--save", dir, "--save-interval", "2"});
  expect_done(run_ +
              Words{"--save", dir, "--load", dir, "--ckpt-step", "2", "--exit-interval", "3", "--keep-last", "2"});
  EXPECT_EQ(read_file(dir + "/latest_checkpointed_iteration.txt"), "3");
  for (const char* iteration : {"2", "3", "4", "6", "8"})
    EXPECT_TRUE(std::filesystem::exists(dir + "/iter_000000" + iteration)) << iteration;
  EXPECT_THAT(run_weft(run_ + Words{"--load", dir, "--load-last-complete", "--use-checkpoint-args"}).out,
              HasSubstr("loaded " + dir + "/iter_0000003, iteration 3\n"));
  // The ranks go where the first one, which alone verifies, has found a whole one.
  std::filesystem::resize_file(dir + "/iter_0000003/rank-00001.safetensors", 1000);
  const Outcome older = run_weft(run_ + Words{"--load", dir, "--load-last-complete"});
  EXPECT_EQ(older.code, 0);
  EXPECT_THAT(older.out, HasSubstr("loaded " + dir + "/iter_0000002, iteration 2\n"));
  EXPECT_EQ(older.err.find("warning"), older.err.rfind("warning"));  // once
}

TEST_F(Resume, ASignalSavesAndExitsWithZero) {
  const std::string dir = folder_.file("run"), log = folder_.file("log");
  std::string command = fmt::format("timeout --preserve-status -s TERM 2 {}/weft", WEFT_BINARY_DIR);
  for (const std::string& word : run_) command += " '" + (word == "8" ? "100000000" : word) + "'";
  command += fmt::format(" --exit-signal-handler --save {} > {} 2>&1", dir, log);
  EXPECT_EQ(std::system(command.c_str()), 0) << read_file(log);
  EXPECT_THAT(read_file(log), HasSubstr(": SIGTERM\n"));
  const std::string iteration = read_file(dir + "/latest_checkpointed_iteration.txt");
  EXPECT_THAT(read_file(log), HasSubstr("stopped after iteration " + iteration + ": SIGTERM\n"));
}

}  // namespace
}  // namespace weft
