// Where the ranks of a run connect: the host and port where rank 0 listens. From the environment:
//   host  MASTER_ADDR (torchrun, or by hand); under srun the first node of the step; 127.0.0.1 if the launcher puts all
//         ranks on one machine
//   port  WEFT_MASTER_PORT; MASTER_PORT, or the next port if torchrun's agent itself listens there; under srun one
//         derived from the job's number; 29500
//   run   WEFT_RUN_ID; the id of torchrun, or job and step of srun; what the program knows about itself (Launch::run)
#pragma once

#include <string>
#include <string_view>

#include "weft/comm/launch.h"
#include "weft/comm/tcp/socket.h"

namespace weft {

struct MasterAddress {
  Endpoint endpoint;
  bool one_machine = false;  // all ranks are on one machine, so listening on its loopback is enough
  std::string run_id;        // tells the ranks of this run from those of others
};

// UserError if the address of rank 0 is not given.
MasterAddress find_master_address(const Launch& launch, const Environment& environment);

// The first host of a Slurm node list: "node[007-010,12],gpu3" -> "node007".
std::string first_host(std::string_view node_list);

}  // namespace weft
