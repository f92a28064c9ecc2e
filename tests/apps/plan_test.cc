// `weft plan` and `weft check`: what they print about a configuration.
#include <nlohmann/json.hpp>

#include "tests/apps/weft_process.h"
#include "weft/base/file.h"
#include "weft/base/json.h"

namespace weft {
namespace {

using ::testing::HasSubstr;
using ::testing::MatchesRegex;

// The title of a page tells whether it is of a plan or of a run, and of which.
TEST(Plan, PagesSayWhatTheyShow) {
  const TemporaryFolder folder;
  const std::string file = folder.file("step.html");
  const Words run = tiny_model + Words{"--ranks",
                                       "2",
                                       "--expert-model-parallel-size",
                                       "2",
                                       "--global-batch-size",
                                       "8",
                                       "--overlap-moe-expert-parallel-comm"};
  const std::string about =
      "[*E] · 41.2 k parameters · 2 ranks · 2 expert ranks · 2 micro-batches of 2 x 16 tokens · f32 · "
      "--overlap-moe-expert-parallel-comm";
  expect_done(Words{"plan", "--html", file} + run);
  EXPECT_THAT(read_file(file), HasSubstr("<title>weft plan: estimate of a step · " + about + "</title>"));
  expect_done(Words{"train", "--train-iters", "1", "--eval-iters", "0", "--device", "cpu", "--timeline", file} + run);
  EXPECT_THAT(read_file(file), HasSubstr("<title>weft train: last step · " + about + "</title>"));
  EXPECT_THAT(read_file(file), HasSubstr("\"times\":\"measured on cpu ("));
  const std::string deep(100, '-');  // does not push the rest out of sight
  expect_done({"plan", "--pattern", deep, "--hidden-size", "8", "--html", file});
  EXPECT_THAT(read_file(file), HasSubstr(" · f32 · " + deep + "</title>"));
  expect_done({"plan", "--hf", golden("mixtral"), "--seq-length", "16", "--html", file});
  EXPECT_THAT(read_file(file), HasSubstr("<title>weft plan: estimate of a step · mixtral · [*E][*E] · "));
}

// The weave needs two micro-batches and an exchange; without, the plan is the same as without the flag.
TEST(Plan, NotesWhereTheWeaveHasNothingToDo) {
  const Words run = tiny_model + Words{"--ranks", "2", "--overlap-moe-expert-parallel-comm"};
  const Words spread = run + Words{"--expert-model-parallel-size", "2"};
  for (const Words& command : {Words{"plan"}, Words{"check"}, Words{"verify", "--steps", "1"},
                               Words{"train", "--train-iters", "1", "--eval-iters", "0"}}) {
    const Outcome one = run_weft(command + spread);
    EXPECT_EQ(one.code, 0) << one.err;
    EXPECT_EQ(one.err,
              "note: --overlap-moe-expert-parallel-comm has no effect: a step has only one micro-batch, so there is no "
              "pair to "
              "weave; use --global-batch-size 8 or more\n");
    expect_done(command + spread + Words{"--global-batch-size", "8"});
    EXPECT_THAT(run_weft(command + run).err,
                HasSubstr("has no effect: with --expert-model-parallel-size 1 no tokens are exchanged"));
  }
}

TEST(Plan, NotesWhereNoDispatchTravels) {
  const Words run = {"--ranks", "2", "--overlap-dispatch-backward-with-experts-wgrad"};
  EXPECT_EQ(
      run_weft(Words{"plan"} + tiny_model + run).err,
      "note: --overlap-dispatch-backward-with-experts-wgrad has no effect: with --expert-model-parallel-size 1 no "
      "tokens are exchanged\n");
  expect_done(Words{"plan"} + tiny_model + run + Words{"--expert-model-parallel-size", "2"});
}

TEST(Plan, NamesTheMachineOfTheEstimate) {
  const TemporaryFolder folder;
  const Words page = {"--html", folder.file("plan.html")};
  const std::string machine =
      "estimated for 100.0 GFLOP/s, 10.0 GB/s of memory, 2.0 GB/s and 20 us between ranks, 2 us per node";
  // One rank exchanges nothing, so that no share of it is hidden.
  const std::string alone = expect_done(Words{"plan"} + tiny_model + page);
  EXPECT_THAT(alone, MatchesRegex("[0-9]+ nodes per rank; step [0-9.]+ ms, " + machine + "\n"));
  EXPECT_THAT(read_file(folder.file("plan.html")), HasSubstr(machine));
  const Words ranks = tiny_model + Words{"--ranks", "2", "--expert-model-parallel-size", "2"};
  EXPECT_THAT(expect_done(Words{"plan"} + ranks + page), HasSubstr(" % of the exchange hidden, " + machine));
  EXPECT_THAT(expect_done(Words{"check"} + ranks), HasSubstr(" % of the exchange hidden\n                " + machine));
}

TEST(Plan, TellsHowMuchOfTransfersAmongTensorRanksIsHidden) {
  const Words run = tiny_model + Words{"--ranks",
                                       "2",
                                       "--tensor-model-parallel-size",
                                       "2",
                                       "--expert-tensor-parallel-size",
                                       "1",
                                       "--global-batch-size",
                                       "8"};
  const Words weave = {"--overlap-moe-expert-parallel-comm", "--delay-wgrad-compute"};
  const Outcome plain = run_weft(Words{"check"} + run), woven = run_weft(Words{"check"} + run + weave);
  EXPECT_THAT(plain.out, HasSubstr(" % of transfers among tensor ranks hidden\n"));
  EXPECT_EQ(woven.err, "");  // it pairs micro-batches, although no tokens are exchanged
  const auto hidden = [&](const Words& flags) {
    const Json report = parse_json(expect_done(Words{"check", "--json"} + run + flags), "check");
    EXPECT_GT(report.at("estimate").at("tensor_seconds").get<double>(), 0);
    return report.at("estimate").at("tensor_hidden_seconds").get<double>();
  };
  EXPECT_GT(hidden(weave), hidden({}));
  EXPECT_EQ(
      run_weft(Words{"check"} + run + Words{"--moe-expert-capacity-factor", "1.5"}).err,
      "note: --moe-expert-capacity-factor 1.5: each of the 2 ranks that share a sample drops by the tokens that it "
      "routes, so what is dropped depends on their number\n");
}

TEST(Plan, EstimatesForTheMachineThatIsAskedFor) {
  const Words run = tiny_model + Words{"--ranks", "2", "--expert-model-parallel-size", "2"};
  const auto estimate = [&](const Words& flags) {
    return parse_json(expect_done(Words{"check", "--json"} + run + flags), "check").at("estimate");
  };
  const Json slow = estimate({}), fast = estimate({"--estimate-flops", "1e15", "--estimate-memory-bandwidth", "1e12"});
  const Json far = estimate({"--estimate-network-latency", "1", "--estimate-network-bandwidth", "1e9"});
  EXPECT_LT(fast.at("step_seconds"), slow.at("step_seconds"));
  EXPECT_NEAR(fast.at("exchange_seconds"), slow.at("exchange_seconds"), 1e-12) << "sums of other numbers";
  EXPECT_GT(far.at("step_seconds").get<double>(), 1);
  // Two ranks on one machine, which is not slowed by the network between machines; then on two.
  const Words network = {"--estimate-network-latency",   "1",   "--estimate-machine-latency", "1e-6",
                         "--estimate-machine-bandwidth", "1e10"};
  const Json near = estimate(network + Words{"--estimate-ranks-per-machine", "2"});
  EXPECT_LT(near.at("step_seconds").get<double>(), 1);
  EXPECT_EQ(near.at("ranks_per_machine"), 2);
  EXPECT_EQ(near.at("machine_bandwidth"), 1e10);
  EXPECT_GT(estimate(network + Words{"--estimate-ranks-per-machine", "1"}).at("step_seconds").get<double>(), 1);
  EXPECT_THAT(expect_done(Words{"check", "--estimate-network-latency", "1e-3"} + run),
              HasSubstr(" and 1000 us between"));
  expect_refused(Words{"check", "--estimate-flops", "0"} + run, {"--estimate-flops"});
}

// What division over ranks takes and what gathering ahead costs, in words and in numbers.
TEST(Plan, TellsWhatDividedWeightsTake) {
  const Words run = Words{"check"} + tiny_model + Words{"--ranks", "4", "--global-batch-size", "16"};
  const Words divided = run + Words{"--data-parallel-sharding-strategy", "optim_grads_params"};
  const std::string text = expect_done(divided);
  EXPECT_THAT(text, HasSubstr(" of them parts of what ranks divide\n    gradients "));
  EXPECT_THAT(text, MatchesRegex(".*\n      gathered  [^\n]* of these at most, whole weights of [0-9]+ units?\n"
                                 "      in flight [^\n]* of these at most, gradients to be reduced\n.*"));
  EXPECT_THAT(text, HasSubstr("sends per step and rank, by lane: gather "));
  EXPECT_THAT(text, HasSubstr("\n  * 1 x the mean unit, "));
  const Json json = parse_json(expect_done(divided + Words{"--json"}), "check");
  EXPECT_GT(json.at("divided").at("weights"), 0);
  EXPECT_LE(json.at("divided").at("weights"), json.at("memory").at("weights"));
  EXPECT_GT(json.at("divided").at("units_at_peak"), 0);
  EXPECT_GT(json.at("traffic").at("gather"), 0);
  EXPECT_EQ(json.at("prefetch").size(), 10);
  EXPECT_EQ(json.at("prefetch").at(1).at("memory"), json.at("memory").at("total"));
  EXPECT_EQ(json.at("prefetch").at(1).at("step_seconds"), json.at("estimate").at("step_seconds"));
  const std::string whole = expect_done(run);
  EXPECT_EQ(whole.find("parts of what"), std::string::npos);
  EXPECT_EQ(whole.find("prefetch"), std::string::npos);
  // A run reports the same memory; it estimates nothing.
  Words train = divided;
  train[0] = "train";
  const std::string log = expect_done(train + Words{"--train-iters", "1", "--eval-iters", "0", "--device", "cpu"});
  const auto rows = [](const std::string& of) {
    const std::size_t first = of.find("\n  memory "), last = of.find("\n    step ");
    return of.substr(first, last - first);
  };
  EXPECT_EQ(rows(log), rows(text));
}

}  // namespace
}  // namespace weft
