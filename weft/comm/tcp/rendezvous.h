// How ranks find each other. Rank 0 listens at the meeting; the others come to it, say who they are and at which port
// they listen themselves, and get the list of all. Then every rank calls on those before it and lets in those behind it.
#pragma once

#include <vector>

#include "weft/comm/tcp/meeting.h"
#include "weft/comm/tcp/socket.h"

namespace weft {

// A connected socket for each other rank, in the order of ranks (this rank's is not open). Ranks may come in any order
// and late, until the timeout (seconds) is over.
std::vector<Socket> connect_ranks(int rank, int size, const Meeting& meeting, double timeout);

}  // namespace weft
