#include "weft/comm/launch.h"

#include <algorithm>
#include <cstdlib>

#include "weft/base/error.h"
#include "weft/base/text.h"

namespace weft {

namespace {

// Rank and size as one launcher states them.
struct Place {
  int rank = 0;
  int size = 1;
  int local_rank = 0;
  int local_size = 1;
};

std::optional<int> number(const Environment& environment, const char* name) {
  const char* text = environment(name);
  if (text == nullptr || *text == '\0') return std::nullopt;
  std::int64_t value = 0;
  if (!parse_int(text, value) || value < 0 || value > 1'000'000'000)
    throw UserError(
        "{}='{}' in the environment is not a rank or a number of ranks; unset it, or start with mpirun or srun", name,
        text);
  return static_cast<int>(value);
}

// What a launcher gives in four variables; nothing if it gives neither rank nor size.
std::optional<Place> place(const Environment& environment, const char* rank_name, const char* size_name,
                           const char* local_rank_name, const char* local_size_name) {
  const std::optional<int> rank = number(environment, rank_name), size = number(environment, size_name);
  if (!rank && !size) return std::nullopt;
  if (!rank || !size) {
    throw UserError("{} is set in the environment and {} is not: set both, or neither", rank ? rank_name : size_name,
                    rank ? size_name : rank_name);
  }
  if (*size < 1 || *rank >= *size)
    throw UserError("{}={} and {}={} in the environment: ranks are 0 to {}", rank_name, *rank, size_name, *size,
                    *size < 1 ? 0 : *size - 1);
  Place found{*rank, *size, 0, 1};
  found.local_rank = number(environment, local_rank_name).value_or(0);
  found.local_size = number(environment, local_size_name).value_or(found.local_rank + 1);
  if (found.local_rank >= found.local_size)
    throw UserError("{}={} and {}={} in the environment: local ranks are 0 to {}", local_rank_name, found.local_rank,
                    local_size_name, found.local_size, found.local_size - 1);
  return found;
}

bool given(const Environment& environment, const char* name) {
  const char* text = environment(name);
  return text != nullptr && *text != '\0';
}

// This node's entry in Slurm's list of tasks per node: "2(x3),1" means 2, 2, 2, 1. Nothing if there is no such entry.
std::optional<int> tasks_on_node(const Environment& environment, const char* list_name) {
  const std::optional<int> node = number(environment, "SLURM_NODEID");
  if (!node || !given(environment, list_name)) return std::nullopt;
  std::int64_t before = *node;  // nodes of the list still to skip
  for (const std::string& entry : split(environment(list_name), ',')) {
    const std::size_t times_at = entry.find("(x");
    std::int64_t tasks = 0, times = 1;
    if (!parse_int(entry.substr(0, times_at), tasks)) return std::nullopt;
    if (times_at != std::string::npos && !parse_int(entry.substr(times_at + 2, entry.find(')') - times_at - 2), times))
      return std::nullopt;
    if (before < times) return static_cast<int>(tasks);
    before -= times;
  }
  return std::nullopt;
}

std::optional<Place> slurm_place(const Environment& environment) {
  // Without a step this is the batch script itself: it sees SLURM_NTASKS=N and rank 0, but the other N-1 never start.
  if (!given(environment, "SLURM_STEP_ID") || !given(environment, "SLURM_PROCID")) return std::nullopt;
  const char* size_name = given(environment, "SLURM_STEP_NUM_TASKS") ? "SLURM_STEP_NUM_TASKS" : "SLURM_NTASKS";
  std::optional<Place> found = place(environment, "SLURM_PROCID", size_name, "SLURM_LOCALID", "");
  if (!found) return found;
  // The step's tasks on this node. SLURM_NTASKS_PER_NODE is a setting of the job, which a step need not follow, and is
  // usually unset.
  const std::optional<int> here = tasks_on_node(environment, "SLURM_STEP_TASKS_PER_NODE");
  found->local_size =
      std::max(found->local_size, here ? *here : number(environment, "SLURM_NTASKS_PER_NODE").value_or(0));
  return found;
}

bool slurm_has_pmi(const Environment& environment) {
  for (const char* name : {"PMIX_RANK", "PMIX_NAMESPACE", "PMI_RANK", "PMI_FD", "PMI2_FD"})
    if (given(environment, name)) return true;
  return false;
}

Launch launched(Launch::By by, const Place& at, bool mpi) {
  return Launch{by, at.rank, at.size, at.local_rank, at.local_size, mpi};
}

// The MPI launcher's view, if one started this process.
std::optional<Launch> mpi_launch(const Environment& environment) {
  if (const auto at = place(environment, "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK",
                            "OMPI_COMM_WORLD_LOCAL_SIZE"))
    return launched(Launch::By::open_mpi, *at, true);
  const auto slurm = slurm_place(environment);
  // Under srun PMI_RANK may be set without PMI_SIZE; Slurm's variables then have everything.
  if (!slurm || given(environment, "PMI_SIZE")) {
    if (const auto at = place(environment, "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"))
      return launched(Launch::By::pmi, *at, true);
  }
  if (slurm) return launched(Launch::By::slurm, *slurm, slurm_has_pmi(environment));
  return std::nullopt;
}

const char* name_of(Launch::By by) {
  switch (by) {
    case Launch::By::itself:
      return "itself";
    case Launch::By::options:
      return "--rank and --world-size";
    case Launch::By::torchrun:
      return "RANK and WORLD_SIZE (torchrun)";
    case Launch::By::open_mpi:
      return "mpirun (Open MPI)";
    case Launch::By::pmi:
      return "mpiexec (PMI)";
    case Launch::By::slurm:
      return "srun (Slurm)";
  }
  return "?";
}

}  // namespace

std::string Launch::text() const {
  if (by == By::itself) return "one process";
  return fmt::format("rank {} of {}, started by {}", rank, size, name_of(by));
}

std::string Launch::without_mpi() const {
  const std::string threads = "ranks that are threads, --ranks N, need no MPI";
  return by == By::slurm ? "srun --mpi=none connects the ranks by TCP; " + threads : threads;
}

Environment process_environment() {
  return [](const char* name) -> const char* { return std::getenv(name); };
}

Launch find_launch(const Environment& environment, const LaunchOptions& options) {
  const std::optional<Launch> mpi = mpi_launch(environment);
  // MPI can connect ranks that were numbered elsewhere only if it numbers them the same way (scripts that export RANK
  // under mpirun do; torchrun on every node of an mpirun does not).
  const auto same = [&](int rank, int size) { return mpi && mpi->mpi && mpi->rank == rank && mpi->size == size; };
  if (options.rank || options.world_size) {
    if (!options.rank || !options.world_size)
      throw UserError("{} also needs {}", options.rank ? "--rank" : "--world-size",
                      options.rank ? "--world-size" : "--rank");
    const int rank = *options.rank, size = *options.world_size;
    if (size < 1 || rank < 0 || rank >= size)
      throw UserError("--rank {} --world-size {}: ranks are 0 to {}", rank, size, size < 1 ? 0 : size - 1);
    Launch launch = mpi.value_or(Launch{});
    if (!mpi) launch.local_rank = number(environment, "LOCAL_RANK").value_or(0);
    if (!mpi) launch.local_size = number(environment, "LOCAL_WORLD_SIZE").value_or(launch.local_rank + 1);
    launch.mpi = same(rank, size);
    launch.by = Launch::By::options;
    launch.rank = rank;
    launch.size = size;
    return launch;
  }
  if (const auto at = place(environment, "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"))
    return launched(Launch::By::torchrun, *at, same(at->rank, at->size));
  return mpi.value_or(Launch{});
}

}  // namespace weft
