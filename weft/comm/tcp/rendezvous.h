// How ranks connect to each other. Rank 0 listens at the master address; the others connect to it, send who they are
// and the port where they listen themselves, and get the list of all ranks. Then every rank connects to the ranks below
// it and accepts connections from those above it.
#pragma once

#include <vector>

#include "weft/comm/tcp/master_address.h"
#include "weft/comm/tcp/socket.h"

namespace weft {

// A connected socket for each other rank, in rank order (this rank's own is not open). Ranks may start in any order
// until the timeout (seconds) has passed.
std::vector<Socket> connect_ranks(int rank, int size, const MasterAddress& master, double timeout);

}  // namespace weft
