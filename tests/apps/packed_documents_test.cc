// Documents that share a sample, in every layout; and where nothing tells them apart.
#include <nlohmann/json.hpp>

#include "tests/apps/weft_process.h"
#include "tests/data/temporary_folder.h"
#include "weft/base/json.h"

namespace weft {
namespace {

using testing::HasSubstr;

const Words rules = {"--reset-attention-mask", "--reset-position-ids", "--eod-mask-loss"};
const Words model = {"--hidden-size",       "32", "--seq-length", "48", "--micro-batch-size", "2",
                     "--global-batch-size", "16", "--eval-iters", "0"};

class PackedDocuments : public testing::Test {
 protected:
  void SetUp() override {
    expect_done({"tokenize", "--stories", "40K", "--output-prefix", data_, "--documents", "lines", "--append-eod"});
  }
  TemporaryFolder folder_;
  std::string data_ = folder_.file("tokens");
};

TEST_F(PackedDocuments, train_alike_in_every_layout) {
  const Words layouts[] = {
      {"--ranks", "4", "--expert-model-parallel-size", "2", "--overlap-moe-expert-parallel-comm",
       "--delay-wgrad-compute"},
      {"--ranks", "4", "--data-parallel-sharding-strategy", "optim_grads_params", "--calculate-per-token-loss"}};
  for (const char* pattern : {"[*E]M-/[*E]", "+EG-"})
    for (const Words& layout : layouts) {
      Words run = Words{"verify",
                        "--pattern",
                        pattern,
                        "--data-path",
                        data_,
                        "--tokenizer-type",
                        "ByteTokenizer",
                        "--steps",
                        "2",
                        "--fp64",
                        "--json",
                        "--num-experts",
                        "4",
                        "--ffn-hidden-size",
                        "32"} +
                  model + rules + layout;
      if (*pattern == '+') run = run + Words{"--kv-lora-rank", "16", "--q-lora-rank", "16"};
      const Json report = parse_json(expect_done(run), "verify");
      EXPECT_EQ(report.at("equal"), true) << report.dump(1);
      EXPECT_LE(report.at("tolerance"), 1e-9);
    }
}

TEST_F(PackedDocuments, change_what_a_model_learns) {
  const auto trained = [&](const Words& flags) {
    return expect_done(Words{"train", "--pattern", "*-", "--data-path", data_, "--tokenizer-type", "ByteTokenizer",
                             "--train-iters", "3", "--log-interval", "1", "--device", "cpu", "--ranks", "1"} +
                       model + flags);
  };
  const auto loss = [](const std::string& log) {
    const std::size_t at = log.rfind("lm loss: ");
    return log.substr(at, log.find(" |", at) - at);
  };
  const std::string plain = loss(trained({}));
  for (const std::string& rule : rules) EXPECT_NE(loss(trained({rule})), plain) << rule;
  // Micro-batches have other numbers of ends, which do not count.
  EXPECT_NE(loss(trained({"--eod-mask-loss", "--calculate-per-token-loss"})), loss(trained({"--eod-mask-loss"})));
}

TEST_F(PackedDocuments, need_an_end) {
  expect_refused(Words{"train", "--pattern", "*-"} + model + rules,
                 {"--reset-attention-mask",
                  "stories and --text are one document; drop the flag, or use --data-path or "
                  "--mock-data"});
  expect_refused(Words{"train", "--pattern", "M-", "--data-path", data_, "--reset-position-ids"} + model,
                 {"--reset-position-ids", "the pattern 'M-' has no *, +, D; drop the flag"});
}

}  // namespace
}  // namespace weft
