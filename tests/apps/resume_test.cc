// Saving, ending and going on, as a user does it.
#include <cstdlib>
#include <filesystem>

#include <nlohmann/json.hpp>

#include "tests/apps/weft_process.h"
#include "weft/base/file.h"
#include "weft/base/text.h"

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
  expect_refused(run_ + Words{"--load", dir},
                 {dir + "/iter_0000004: the optimizer's state is not in the checkpoint ('first_moment/",
                  "'); load it with --no-load-optim or --finetune"});
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
  EXPECT_THAT(older.err, HasSubstr("; looking for an older checkpoint\n"));
  EXPECT_THAT(older.out, HasSubstr("loaded " + dir + "/iter_0000004, iteration 4\n"));
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
