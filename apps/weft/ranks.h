// The ranks of a run: threads of this process, or processes that a launcher started.
#pragma once

#include <functional>
#include <memory>

#include "weft/comm/launch.h"
#include "weft/comm/sigterm.h"
#include "weft/comm/world.h"
#include "weft/train/options.h"

namespace weft {

Launch this_launch(const LayoutOptions& layout);
// Connects this process with the others that were started: by MPI where an MPI launcher did it, otherwise by TCP.
std::unique_ptr<World> join_world(const Launch& launch, double timeout, Sigterm sigterm = Sigterm::watch);
// To be called before anything asks for GPUs.
void prepare_ranks(const TrainOptions& options, const Launch& launch);

// Where a rank runs.
struct RankPlace {
  World* world;  // null for one rank
  Device& device;
  int ranks_on_device;
  int cores = 0;  // of a launcher's rank: its share of the machine's; 0: all of this process's ranks share its cores
};
// Runs body on every rank that lives in this process, each with a device of its own, and returns the largest exit code.
// Ranks on GPUs use NCCL where a launcher started them or --distributed-backend asks for it.
// sigterm: of a process of a launcher.
int run_ranks(const TrainOptions& options, const Launch& launch, const std::string& device, Sigterm sigterm,
              const std::function<int(const RankPlace&)>& body);

}  // namespace weft
