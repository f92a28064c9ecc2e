// One of four processes dies by SIGKILL where parameters are gathered, reduced, added up, updated or released: the others
// end soon, and say which rank is gone and where that left them.
#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <map>

#include <fmt/format.h>
#include <nlohmann/json.hpp>
#include <sys/wait.h>

#include "tests/apps/weft_process.h"
#include "tests/comm/rank_processes.h"
#include "weft/base/json.h"
#include "weft/base/text.h"
#include "weft/comm/mpi_world.h"
#include "weft/grid/layout.h"

namespace weft {
namespace {

constexpr int ranks = 4;

// Plain: in two instances of the optimizer, which sum their gradients once per step.
Words sharded_run(bool woven) {
  const Words run = {"--pattern",
                     "[*E][*-]",
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
                     "12",
                     "--train-iters",
                     "4",
                     "--eval-iters",
                     "0",
                     "--stories",
                     "20000",
                     "--threads",
                     "1",
                     "--data-parallel-sharding-strategy",
                     "optim_grads_params",
                     "--distributed-timeout-minutes",
                     "0.3"};
  return run + (woven ? Words{"--expert-model-parallel-size", "2", "--overlap-moe-expert-parallel-comm",
                              "--delay-wgrad-compute"}
                      : Words{"--num-distributed-optimizer-instances", "2"});
}

const Json& nodes_of(bool woven) {
  static std::map<bool, Json> known;
  Json& nodes = known[woven];
  if (nodes.is_null())
    nodes =
        parse_json(expect_done(Words{"plan", "--json", "--ranks", std::to_string(ranks)} + sharded_run(woven)), "plan")
            .at("nodes");
  return nodes;
}

enum class Dies : std::uint8_t { gathering, reducing, adding, updating, releasing };
constexpr std::array<const char*, 5> names = {"gathering", "reducing", "adding", "updating", "releasing"};

bool communicates(const Json& node, const char* how) {
  return node.at("kind") == "communicate" && node.at("collectives").at(0).at("kind") == how;
}
// What instances add up, they send to each other.
bool is_where(Dies dies, bool woven, const Json& node) {
  switch (dies) {
    case Dies::gathering:
      return communicates(node, "all_gather");
    case Dies::reducing:
      return communicates(node, "reduce_scatter");
    case Dies::adding:
      return woven ? node.at("kind") == "accumulate"
                   : communicates(node, "all_reduce") && node.at("place").get<std::string>().ends_with(".gradients");
    case Dies::updating:
      return node.at("phase") == "update" && node.at("kind") == "compute" && node.at("place") != "step.clip";
    case Dies::releasing:
      return node.at("kind") == "release";
  }
  return false;
}

struct Fault {
  std::size_t node = 0;
  int rank = 0;
  Words words;  // of the run
};
Fault fault_of(Dies dies, bool woven) {
  const Json& nodes = nodes_of(woven);
  std::vector<std::size_t> found;
  for (std::size_t i = 0; i < nodes.size(); ++i)
    if (is_where(dies, woven, nodes[i])) found.push_back(i);
  Fault fault;
  if (found.empty()) {
    ADD_FAILURE() << "no node of the plan";
    return fault;
  }
  fault.node = found[found.size() / 2];
  fault.rank = (static_cast<int>(dies) + (woven ? 2 : 0)) % ranks;
  fault.words = Words{"train"} + sharded_run(woven) +
                Words{"--inject-fault", fmt::format("kill@{}:{}:2", fault.node, fault.rank)};
  return fault;
}

class ShardedFaults : public testing::TestWithParam<std::tuple<Dies, bool>> {
 protected:
  Dies dies() const { return std::get<0>(GetParam()); }
  bool woven() const { return std::get<1>(GetParam()); }
};

// Whether a rank cannot get past a node, since the lost rank would have to take part.
bool needs_the_lost_rank(const Json& node, int rank, const Fault& fault, bool woven) {
  if (node.at("kind") != "communicate") return false;
  const Layout layout = Layout::of({.dp = ranks, .ep = woven ? 2 : 1, .instances = woven ? 1 : 2}, RankId(rank));
  const std::vector<std::string> groups = layout.group_names();
  const auto group =
      std::find(groups.begin(), groups.end(), node.at("collectives").at(0).at("group").get<std::string>());
  const RankGroup members = layout.members_of(GroupId(group - groups.begin()));
  return std::find(members.begin(), members.end(), RankId(fault.rank)) != members.end();
}

// "noticed at node 37, forward main.0*.gather@1". On the lane of the node that the lost rank never began, it is not behind
// that node.
void expect_names_a_node(const std::string& output, int rank, const Fault& fault, bool woven) {
  const std::string before = fmt::format("rank {} is gone (its connection closed), noticed at node ", fault.rank);
  const std::size_t at = output.find(before);
  ASSERT_NE(at, std::string::npos) << output;
  const std::string rest = output.substr(at + before.size(), output.find('\n', at) - at - before.size());
  std::int64_t number = -1;
  ASSERT_TRUE(parse_int(rest.substr(0, rest.find(',')), number)) << output;
  const Json& nodes = nodes_of(woven);
  const Json &noticed = nodes.at(static_cast<std::size_t>(number)), &missed = nodes.at(fault.node);
  EXPECT_EQ(rest, fmt::format("{}, {}", number, noticed.at("name").get<std::string>()));
  const bool stays = noticed.at("lane") == missed.at("lane") && needs_the_lost_rank(missed, rank, fault, woven);
  EXPECT_TRUE(!stays || number <= static_cast<std::int64_t>(fault.node)) << output;
}

TEST_P(ShardedFaults, over_tcp_end_all_ranks_and_name_the_lost_one_and_a_node) {
  const Fault fault = fault_of(dies(), woven());
  const auto ended = run_on_ranks(ranks, Words{WEFT_BINARY_DIR "/weft"} + fault.words);
  for (int rank = 0; rank < ranks; ++rank) {
    const EndedProcess& each = ended[static_cast<std::size_t>(rank)];
    EXPECT_LT(each.seconds, 20);
    EXPECT_EQ(each.code, rank == fault.rank ? 137 : 1) << "rank " << rank << ": " << each.output;
    if (rank != fault.rank) expect_names_a_node(each.output, rank, fault, woven());
  }
}

TEST_P(ShardedFaults, over_mpi_end_all_ranks_and_name_the_lost_one_and_nodes) {
  if (std::system("command -v mpirun > /dev/null") != 0) GTEST_SKIP() << "mpirun is not installed";
  if (mpi_version().starts_with("not built in")) GTEST_SKIP() << "MPI is " << mpi_version();
  const Fault fault = fault_of(dies(), woven());
  std::string command =
      fmt::format("timeout 60 mpirun --allow-run-as-root --oversubscribe -n {} {}/weft", ranks, WEFT_BINARY_DIR);
  for (const std::string& word : fault.words) command += " '" + word + "'";
  const auto begin = std::chrono::steady_clock::now();
  FILE* pipe = popen((command + " 2>&1").c_str(), "r");
  ASSERT_NE(pipe, nullptr);
  std::string output;
  char buffer[4096];
  while (const std::size_t n = std::fread(buffer, 1, sizeof(buffer), pipe)) output.append(buffer, n);
  const int status = pclose(pipe);
  EXPECT_EQ(WIFEXITED(status) ? WEXITSTATUS(status) : -1, 137) << output;
  EXPECT_LT(std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count(), 30);
  EXPECT_THAT(output, testing::ContainsRegex(fmt::format("rank {} with PID .* exited on signal 9", fault.rank)));
  EXPECT_THAT(output, testing::ContainsRegex("weft: rank [0-3] got SIGTERM and stops. It was at: .*compute at [a-z_]+ "
                                             "[^ ]+ \\([0-9]+ of [0-9]+ done\\)"));
}

INSTANTIATE_TEST_SUITE_P(Each, ShardedFaults,
                         testing::Combine(testing::Values(Dies::gathering, Dies::reducing, Dies::adding, Dies::updating,
                                                          Dies::releasing),
                                          testing::Bool()),
                         [](const auto& tested) {
                           return fmt::format("{}_{}", names[static_cast<std::size_t>(std::get<0>(tested.param))],
                                              std::get<1>(tested.param) ? "woven" : "plain");
                         });

}  // namespace
}  // namespace weft
