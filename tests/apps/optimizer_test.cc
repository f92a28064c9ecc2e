// `--optimizer sgd` from the command line: against the oracle, saved and loaded, converted.
#include <nlohmann/json.hpp>

#include "tests/apps/weft_process.h"
#include "weft/base/json.h"

namespace weft {
namespace {

using ::testing::HasSubstr;

const Words sgd = {"--optimizer", "sgd"};

TEST(Optimizer, SgdOfRanksIsThatOfTheOracle) {
  for (const char* momentum : {"0.5", "0"})
    for (const char* strategy : {"no_shard", "optim_grads_params"}) {
      const Words run = {"verify",
                         "--pattern",
                         "[*E]M",
                         "--hidden-size",
                         "32",
                         "--num-experts",
                         "4",
                         "--moe-ffn-hidden-size",
                         "16",
                         "--seq-length",
                         "24",
                         "--micro-batch-size",
                         "1",
                         "--global-batch-size",
                         "12",
                         "--stories",
                         "20000",
                         "--ranks",
                         "4",
                         "--expert-model-parallel-size",
                         "2",
                         "--overlap-moe-expert-parallel-comm",
                         "--overlap-optimizer",
                         "--data-parallel-sharding-strategy",
                         strategy,
                         "--sgd-momentum",
                         momentum,
                         "--steps",
                         "3",
                         "--dtype",
                         "f64",
                         "--json"};
      const Json report = parse_json(expect_done(run + sgd), "verify");
      EXPECT_EQ(report.at("equal"), true) << report.dump(1);
      EXPECT_LE(report.at("tolerance"), 1e-9);
    }
}

std::string digest_in(const std::string& output) { return output.substr(output.find("digest")); }

class SgdCheckpoint : public testing::Test {
 protected:
  const Words run_ = Words{"train", "--device", "cpu"} + tiny_model + sgd +
                     Words{"--train-iters",       "4",  "--eval-iters", "0",      "--threads", "1",    "--ranks", "2",
                           "--global-batch-size", "16", "--digest",     "--bf16", "--stories", "20000"};
  TemporaryFolder folder_;
  const std::string dir_ = folder_.file("run");
};

TEST_F(SgdCheckpoint, GoesOnAsIfItHadNotBeenStopped) {
  const std::string straight = expect_done(run_);
  const Words in_parts = run_ + Words{"--save", dir_, "--load", dir_};
  expect_done(in_parts + Words{"--exit-interval", "2"});
  EXPECT_EQ(digest_in(expect_done(in_parts)), digest_in(straight));
  // The model alone is the checkpoint's.
  EXPECT_THAT(expect_done({"inspect", dir_ + "/iter_0000002"}), HasSubstr("optimizer      its state is there"));
  EXPECT_THAT(expect_done({"inspect", dir_ + "/iter_0000002", "--tensors"}), HasSubstr("momentum/language.main.0.q"));
}

TEST_F(SgdCheckpoint, IsOfItsOptimizer) {
  expect_done(run_ + Words{"--save", dir_, "--exit-interval", "2"});
  Words adam = run_;
  for (std::string& word : adam)
    if (word == "sgd") word = "adam";
  expect_refused(adam + Words{"--load", dir_},
                 {dir_ + "/iter_0000002: the optimizer's state in it is that of --optimizer sgd",
                  "and this run has --optimizer adam: choose the same optimizer, or load the checkpoint with "
                  "--no-load-optim or --finetune"});
  EXPECT_THAT(expect_done(adam + Words{"--load", dir_, "--no-load-optim"}),
              HasSubstr("iteration 2, without the optimizer's state"));
}

TEST_F(SgdCheckpoint, IsConvertedToWeftsFormAndItsWeightsToMegatrons) {
  expect_done(run_ + Words{"--save", dir_, "--exit-interval", "2"});
  const std::string whole = folder_.file("whole"), megatron = folder_.file("megatron");
  expect_done({"convert", "--from", "weft", "--to", "weft", "--in", dir_, "--out", whole});
  EXPECT_THAT(expect_done({"inspect", "--diff", dir_ + "/iter_0000002", whole, "--only", "momentum/*"}),
              HasSubstr("22 equal bit for bit\n"));
  const Words to_megatron = {"convert", "--from", "weft", "--to", "megatron", "--in", dir_, "--out", megatron};
  expect_refused(to_megatron, {"the optimizer's state is that of --optimizer sgd (the momentum of language.",
                               "take the weights alone with --no-load-optim"});
  expect_done(to_megatron + Words{"--no-load-optim"});
  EXPECT_THAT(expect_done({"inspect", "--diff", dir_ + "/iter_0000002", megatron, "--only", "weight/*"}),
              HasSubstr("22 equal bit for bit\n"));
}

}  // namespace
}  // namespace weft
