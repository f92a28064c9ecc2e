#include "weft/comm/tcp/master_address.h"

#include <map>

#include <gtest/gtest.h>

#include "weft/base/error.h"

namespace weft {
namespace {

using Variables = std::map<std::string, std::string>;

MasterAddress find(const Variables& variables, const LaunchOptions& options = {}) {
  const Environment environment = [&](const char* name) {
    const auto found = variables.find(name);
    return found == variables.end() ? nullptr : found->second.c_str();
  };
  return find_master_address(find_launch(environment, options), environment);
}

std::string error_of(const Variables& variables, const LaunchOptions& options = {}) {
  try {
    find(variables, options);
  } catch (const UserError& error) {
    return error.what();
  }
  return "no error";
}

Variables with(Variables variables, const Variables& more) {
  for (const auto& [name, value] : more) variables[name] = value;
  return variables;
}

const Variables torch{{"RANK", "1"},
                      {"WORLD_SIZE", "4"},
                      {"LOCAL_RANK", "1"},
                      {"LOCAL_WORLD_SIZE", "2"},
                      {"MASTER_ADDR", "node7"},
                      {"MASTER_PORT", "1234"},
                      {"TORCHELASTIC_RUN_ID", "abc"}};
const Variables slurm{{"SLURM_PROCID", "3"},
                      {"SLURM_NTASKS", "4"},
                      {"SLURM_LOCALID", "1"},
                      {"SLURM_STEP_ID", "2"},
                      {"SLURM_JOB_ID", "1000"},
                      {"SLURM_STEP_NUM_NODES", "2"},
                      {"SLURM_STEP_NODELIST", "gpu[07-08]"}};

TEST(MasterAddress, FromTorchrun) {
  const MasterAddress master = find(torch);
  EXPECT_EQ(master.endpoint.text(), "node7:1234");
  EXPECT_FALSE(master.one_machine);
  EXPECT_EQ(master.run_id, "abc");
  // Its agent listens at that port.
  EXPECT_EQ(find(with(torch, {{"TORCHELASTIC_USE_AGENT_STORE", "True"}})).endpoint.port, 1235);
  EXPECT_EQ(find(with(torch, {{"TORCHELASTIC_USE_AGENT_STORE", "True"}, {"WEFT_MASTER_PORT", "77"}})).endpoint.port,
            77);
}

TEST(MasterAddress, FromSrun) {
  const MasterAddress master = find(slurm);
  EXPECT_EQ(master.endpoint.text(), "gpu07:27002");
  EXPECT_EQ(master.run_id, "job 1000 step 2");
  const MasterAddress alone = find(with(slurm, {{"SLURM_STEP_NUM_NODES", "1"}}));
  EXPECT_EQ(alone.endpoint.host, "127.0.0.1");
  EXPECT_TRUE(alone.one_machine);
  EXPECT_EQ(find(with(slurm, {{"MASTER_ADDR", "::1"}, {"MASTER_PORT", "9"}})).endpoint.text(), "[::1]:9");
}

TEST(MasterAddress, ByHand) {
  const LaunchOptions by_hand{.rank = 2, .world_size = 4};
  EXPECT_EQ(find({{"MASTER_ADDR", "localhost"}}, by_hand).endpoint.text(), "localhost:29500");
  EXPECT_TRUE(find({{"MASTER_ADDR", "localhost"}}, by_hand).one_machine);
  EXPECT_EQ(find({{"LOCAL_WORLD_SIZE", "4"}}, by_hand).endpoint.text(), "127.0.0.1:29500");
  EXPECT_EQ(
      error_of({}, by_hand),
      "this is rank 2 of 4, started by --rank and --world-size, and MASTER_ADDR is not set: set it to the name or "
      "address of rank 0's machine, on every rank (127.0.0.1 if all run on this one)");
  EXPECT_EQ(error_of({{"MASTER_ADDR", "a"}, {"MASTER_PORT", "http"}}, by_hand),
            "MASTER_PORT='http' in the environment is not a port: give 1 to 65535");
}

TEST(MasterAddress, ARunAlwaysHasAName) {
  EXPECT_EQ(find(with(torch, {{"WEFT_RUN_ID", "mine"}})).run_id, "mine");
  EXPECT_EQ(find(with(slurm, {{"WEFT_RUN_ID", "mine"}})).run_id, "mine");
  Launch launch;
  launch.by = Launch::By::options;
  launch.run = "options 12";
  EXPECT_EQ(find_master_address(launch, [](const char*) { return nullptr; }).run_id, "options 12");
}

TEST(MasterAddress, FirstOfSlurmsNodes) {
  EXPECT_EQ(first_host("node1"), "node1");
  EXPECT_EQ(first_host("node1,node2"), "node1");
  EXPECT_EQ(first_host("node[007-010,12],gpu3"), "node007");
  EXPECT_EQ(first_host("rack[1,3]-n[05-06].example"), "rack1-n05.example");
}

}  // namespace
}  // namespace weft
