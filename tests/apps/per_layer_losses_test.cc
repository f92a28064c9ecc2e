// --moe-per-layer-logging: the router's losses of every layer, in log, metrics and TensorBoard.
#include <nlohmann/json.hpp>

#include "tests/apps/weft_process.h"
#include "tests/data/temporary_folder.h"
#include "weft/base/file.h"
#include "weft/base/json.h"

namespace weft {
namespace {

using testing::HasSubstr;
using testing::Not;

const Words run = {"train",
                   "--pattern",
                   "[*E]-E/[*E]",
                   "--hidden-size",
                   "32",
                   "--ffn-hidden-size",
                   "32",
                   "--num-experts",
                   "4",
                   "--seq-length",
                   "16",
                   "--micro-batch-size",
                   "1",
                   "--global-batch-size",
                   "4",
                   "--train-iters",
                   "2",
                   "--eval-iters",
                   "0",
                   "--log-interval",
                   "1",
                   "--stories",
                   "20000",
                   "--device",
                   "cpu",
                   "--ranks",
                   "2"};
const Words losses = {"--moe-aux-loss-coeff", "0.01", "--moe-z-loss-coeff", "0.001"};

class PerLayerLosses : public testing::Test {
 protected:
  Json last_line(const Words& flags) {
    const std::string file = folder_.file("metrics");
    std::remove(file.c_str());
    log_ = expect_done(run + losses + flags + Words{"--metrics", file});
    const std::string lines = read_file(file);
    return parse_json(lines.substr(lines.rfind('\n', lines.size() - 2) + 1), "metrics");
  }
  TemporaryFolder folder_;
  std::string log_;
};

TEST_F(PerLayerLosses, are_logged_by_symbol_and_apart_for_mtp) {
  const std::string board = folder_.file("board");
  const Json line = last_line({"--moe-per-layer-logging", "--tensorboard-dir", board});
  for (const std::string name : {"load_balancing_loss", "z_loss"}) {
    double sum = 0;
    for (const char* layer : {"_layer_1", "_layer_3", "_mtp_1_layer_1"}) {
      const double loss = line.at(name + layer);
      EXPECT_GT(loss, 0) << name << layer;
      sum += loss;
      EXPECT_THAT(log_, HasSubstr(name + layer + ": "));
    }
    EXPECT_NEAR(line.at(name), sum / 3, 1e-9 * sum) << "the mean over layers";
  }
  EXPECT_NE(line.at("z_loss_layer_1"), line.at("z_loss_layer_3"));
  std::string events;
  for (const auto& file : std::filesystem::directory_iterator(board)) events += read_file(file.path());
  EXPECT_THAT(events, HasSubstr("z_loss_mtp_1_layer_1"));
}

TEST_F(PerLayerLosses, are_means_without_the_flag) {
  const Json plain = last_line({}), detailed = last_line({"--moe-per-layer-logging"});
  EXPECT_THAT(plain.dump(), Not(HasSubstr("_layer_")));
  for (const char* name : {"loss", "load_balancing_loss", "z_loss"})
    EXPECT_EQ(plain.at(name), detailed.at(name)) << name;
}

TEST_F(PerLayerLosses, are_not_there_without_a_loss) {
  expect_refused(
      run + Words{"--moe-per-layer-logging"},
      {"--moe-per-layer-logging", "no loss balances the experts; set --moe-aux-loss-coeff or --moe-z-loss-coeff"});
}

}  // namespace
}  // namespace weft
