#include "weft/comm/launch.h"

#include <map>

#include <gtest/gtest.h>

#include "weft/base/error.h"
#include "weft/comm/mpi_world.h"

namespace weft {
namespace {

using Variables = std::map<std::string, std::string>;

Launch find(const Variables& variables, const LaunchOptions& options = {}) {
  return find_launch(
      [&](const char* name) {
        const auto found = variables.find(name);
        return found == variables.end() ? nullptr : found->second.c_str();
      },
      options);
}

std::string error_of(const Variables& variables, const LaunchOptions& options = {}) {
  try {
    find(variables, options);
  } catch (const UserError& error) {
    return error.what();
  }
  return "no error";
}

const Variables open_mpi{{"OMPI_COMM_WORLD_RANK", "5"},
                         {"OMPI_COMM_WORLD_SIZE", "8"},
                         {"OMPI_COMM_WORLD_LOCAL_RANK", "1"},
                         {"OMPI_COMM_WORLD_LOCAL_SIZE", "4"}};
const Variables slurm_step{
    {"SLURM_PROCID", "3"}, {"SLURM_NTASKS", "4"}, {"SLURM_LOCALID", "1"}, {"SLURM_STEP_ID", "0"}};

Variables with(Variables variables, const Variables& more) {
  for (const auto& [name, value] : more) variables[name] = value;
  return variables;
}

void expect_launch(const Launch& launch, Launch::By by, int rank, int size, int local_rank, bool mpi) {
  EXPECT_EQ(launch.by, by) << launch.text();
  EXPECT_EQ(launch.rank, rank);
  EXPECT_EQ(launch.size, size);
  EXPECT_EQ(launch.local_rank, local_rank);
  EXPECT_EQ(launch.mpi, mpi);
}

TEST(Launch, SingleProcess) {
  expect_launch(find({}), Launch::By::itself, 0, 1, 0, false);
  EXPECT_EQ(find({}).text(), "one process");
}

TEST(Launch, EveryLauncher) {
  expect_launch(find(open_mpi), Launch::By::open_mpi, 5, 8, 1, true);
  EXPECT_EQ(find(open_mpi).local_size, 4);
  EXPECT_EQ(find(open_mpi).text(), "rank 5 of 8, started by mpirun (Open MPI)");
  expect_launch(find({{"PMI_RANK", "1"}, {"PMI_SIZE", "2"}, {"MPI_LOCALRANKID", "1"}, {"MPI_LOCALNRANKS", "2"}}),
                Launch::By::pmi, 1, 2, 1, true);
  expect_launch(find({{"RANK", "2"}, {"WORLD_SIZE", "4"}, {"LOCAL_RANK", "0"}}), Launch::By::torchrun, 2, 4, 0, false);
  expect_launch(find(with(slurm_step, {{"PMIX_RANK", "3"}})), Launch::By::slurm, 3, 4, 1, true);
  expect_launch(find(with(slurm_step, {{"PMI_FD", "11"}})), Launch::By::slurm, 3, 4, 1, true);
  expect_launch(find(slurm_step), Launch::By::slurm, 3, 4, 1, false);  // srun --mpi=none
}

TEST(Launch, CountsTheTasksOfTheStepNotTheJob) {
  expect_launch(find(with(slurm_step, {{"SLURM_STEP_NUM_TASKS", "6"}})), Launch::By::slurm, 3, 6, 1, false);
}

TEST(Launch, TasksOfAStepOnThisNode) {
  // As set by srun of Slurm 22.05; SLURM_NTASKS_PER_NODE is set only if the user asked for it.
  const auto here = [](const std::string& list, const std::string& node) {
    return find(with(slurm_step, {{"SLURM_STEP_TASKS_PER_NODE", list}, {"SLURM_NODEID", node}})).local_size;
  };
  EXPECT_EQ(here("2", "0"), 2);
  EXPECT_EQ(here("4(x3),2", "0"), 4);
  EXPECT_EQ(here("4(x3),2", "2"), 4);
  EXPECT_EQ(here("4(x3),2", "3"), 2);
  EXPECT_EQ(here("3,2(x2)", "2"), 2);
  EXPECT_EQ(find(with(slurm_step, {{"SLURM_NTASKS_PER_NODE", "4"}})).local_size, 4);
  EXPECT_EQ(find(slurm_step).local_size, 2);  // derived from its local rank
}

TEST(Launch, ABatchScriptIsOneProcess) {
  expect_launch(find({{"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "16"}, {"SLURM_JOB_ID", "7"}}), Launch::By::itself, 0, 1,
                0, false);
}

TEST(Launch, Precedence) {
  const Variables torch{{"RANK", "2"}, {"WORLD_SIZE", "4"}, {"LOCAL_RANK", "2"}};
  const Variables pmi{{"PMI_RANK", "1"}, {"PMI_SIZE", "2"}};
  expect_launch(find(with(torch, open_mpi), {.rank = 0, .world_size = 3}), Launch::By::options, 0, 3, 1, false);
  expect_launch(find(with(torch, open_mpi)), Launch::By::torchrun, 2, 4, 2, false);
  expect_launch(find(with(pmi, open_mpi)), Launch::By::open_mpi, 5, 8, 1, true);
  expect_launch(find(with(pmi, slurm_step)), Launch::By::pmi, 1, 2, 0, true);
  // torchrun under srun, one task per node
  expect_launch(find(with(torch, slurm_step)), Launch::By::torchrun, 2, 4, 2, false);
}

TEST(Launch, MpiServesRanksThatAScriptExported) {
  expect_launch(find(with(open_mpi, {{"RANK", "5"}, {"WORLD_SIZE", "8"}, {"LOCAL_RANK", "1"}})), Launch::By::torchrun,
                5, 8, 1, true);
  expect_launch(find(open_mpi, {.rank = 5, .world_size = 8}), Launch::By::options, 5, 8, 1, true);
}

TEST(Launch, Contradictions) {
  EXPECT_EQ(error_of({{"RANK", "3"}}), "RANK is set in the environment and WORLD_SIZE is not: set both, or neither");
  EXPECT_EQ(error_of({{"PMI_SIZE", "3"}}),
            "PMI_SIZE is set in the environment and PMI_RANK is not: set both, or neither");
  EXPECT_EQ(error_of({{"RANK", "4"}, {"WORLD_SIZE", "4"}}),
            "RANK=4 and WORLD_SIZE=4 in the environment: ranks are 0 to 3");
  EXPECT_EQ(error_of({{"RANK", "one"}, {"WORLD_SIZE", "4"}}),
            "RANK='one' in the environment is not a rank or a number of ranks; unset it, or start with mpirun or srun");
  EXPECT_EQ(error_of({{"RANK", "0"}, {"WORLD_SIZE", "4"}, {"LOCAL_RANK", "2"}, {"LOCAL_WORLD_SIZE", "2"}}),
            "LOCAL_RANK=2 and LOCAL_WORLD_SIZE=2 in the environment: local ranks are 0 to 1");
  EXPECT_EQ(error_of({}, {.rank = 1}), "--rank also needs --world-size");
  EXPECT_EQ(error_of({}, {.world_size = 4}), "--world-size also needs --rank");
  EXPECT_EQ(error_of({}, {.rank = 4, .world_size = 4}), "--rank 4 --world-size 4: ranks are 0 to 3");
}

TEST(Launch, AdviceWithoutMpi) {
  EXPECT_EQ(find(open_mpi).without_mpi(), "ranks that are threads, --ranks N, need no MPI");
  EXPECT_EQ(find(with(slurm_step, {{"PMIX_RANK", "3"}})).without_mpi(),
            "srun --mpi=none connects the ranks by TCP; ranks that are threads, --ranks N, need no MPI");
}

TEST(Launch, MpiRefusesOtherLaunchers) {
  try {
    make_mpi_world(find(slurm_step));
    FAIL();
  } catch (const UserError& error) {
    EXPECT_NE(std::string(error.what()).find("rank 3 of 4, started by srun (Slurm)"), std::string::npos)
        << error.what();
  }
}

}  // namespace
}  // namespace weft
