// Which rank this process is, and of how many. Taken from the command line or from the environment a launcher set up;
// the first that applies: --rank and --world-size; RANK and WORLD_SIZE (torchrun); OMPI_COMM_WORLD_*; PMI_* (MPICH,
// Intel MPI); SLURM_* inside a step (an sbatch script without srun is one process); otherwise a single process.
#pragma once

#include <functional>
#include <optional>
#include <string>

namespace weft {

struct Launch {
  enum class By : unsigned char { itself, options, torchrun, open_mpi, pmi, slurm };
  By by = By::itself;
  int rank = 0;
  int size = 1;
  int local_rank = 0;  // among the ranks of this machine
  int local_size = 1;
  bool mpi = false;  // an MPI launcher numbered the ranks this way, so MPI can connect them
  std::string run;   // what tells this run from others where the launcher gives it no name; the same on all ranks

  std::string text() const;         // "rank 2 of 4, started by mpirun (Open MPI)"
  std::string without_mpi() const;  // advice: how to start such ranks without MPI
};

struct LaunchOptions {
  std::optional<int> rank;        // --rank
  std::optional<int> world_size;  // --world-size
};

// The value of an environment variable, or null.
using Environment = std::function<const char*(const char*)>;
Environment process_environment();

// UserError when variables contradict each other or are not numbers.
Launch find_launch(const Environment& environment, const LaunchOptions& options = {});

}  // namespace weft
