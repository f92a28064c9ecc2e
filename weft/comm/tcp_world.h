// The world of processes that a launcher without MPI started, connected by TCP: torchrun, srun without PMI, or ranks
// started by hand. It moves host memory; for GPUs it is the channel that NCCL's worlds are made over.
#pragma once

#include <memory>

#include "weft/comm/launch.h"
#include "weft/comm/world.h"

namespace weft {

// Connects this process with the other ranks: they meet rank 0 at MASTER_ADDR and MASTER_PORT (weft/comm/tcp/meeting.h
// says what stands for them), and every two get a connection. UserError when nothing says where rank 0 is, or when it
// refuses this process; RunError when some rank does not come within the timeout, which is that of later waits too
// unless World::set_timeout gives another. The destructor waits for the other ranks to come to it too.
std::unique_ptr<World> make_tcp_world(const Launch& launch, const Environment& environment, double timeout = 600);

}  // namespace weft
