// Where the ranks of a run meet: at the port where rank 0 listens. From the environment:
//   machine  MASTER_ADDR (torchrun, or by hand); under srun the first node of the step; 127.0.0.1 where the launcher
//            says that all ranks are on one machine
//   port     WEFT_MASTER_PORT; MASTER_PORT, or the one above it where torchrun's agent itself listens there; under srun
//            one that follows from the job's number; 29500
#pragma once

#include <string>
#include <string_view>

#include "weft/comm/launch.h"
#include "weft/comm/tcp/socket.h"

namespace weft {

struct Meeting {
  Endpoint at;
  bool one_machine = false;  // nobody comes from elsewhere: to listen on its loopback is enough
  std::string run;           // the launcher's name of this run, if it has one
};

// UserError when nothing says where rank 0 is.
Meeting find_meeting(const Launch& launch, const Environment& environment);

// The first of Slurm's list: "node[007-010,12],gpu3" -> "node007".
std::string first_host(std::string_view node_list);

}  // namespace weft
