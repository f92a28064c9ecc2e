// A world of processes started without MPI and connected by TCP: by torchrun, by srun without PMI, or by hand. It moves
// host memory; for GPUs it is the channel over which NCCL is set up.
#pragma once

#include <memory>

#include "weft/comm/launch.h"
#include "weft/comm/sigterm.h"
#include "weft/comm/world.h"

namespace weft {

// Connects this process with the other ranks: all connect to rank 0 at MASTER_ADDR and MASTER_PORT
// (weft/comm/tcp/master_address.h lists the defaults), then every two ranks connect. UserError when the address of rank
// 0 is unknown or rank 0 refuses this process; RunError when some rank does not connect within the timeout (seconds),
// which also applies to later waits unless World::set_timeout changes it. The destructor waits for the other ranks'
// destructors.
std::unique_ptr<World> make_tcp_world(const Launch& launch, const Environment& environment, double timeout = 600,
                                      Sigterm sigterm = Sigterm::watch);

}  // namespace weft
