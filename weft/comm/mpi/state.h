// What the groups of a process share under MPI.
#pragma once

#include <atomic>
#include <functional>
#include <string>

#include "weft/comm/mpi/control.h"
#include "weft/comm/mpi/requests.h"
#include "weft/comm/standing.h"

namespace weft {

struct MpiState {
  MpiState(MPI_Comm control_comm, int rank, int size, MpiControl::Sigterm sigterm)
      : control(control_comm, rank, size, standing, sigterm) {}

  static constexpr double answer_seconds = 1;  // for the other ranks to say where they stand

  Standing standing;
  std::atomic<double> timeout{600};  // seconds
  std::atomic<bool> finalized{false};
  MpiControl control;

  // Waits for `requests`. Past the timeout it ends the run with a report; then, and when another rank ended it, the
  // requests are abandoned and it throws. what: "all_gather (call 3) of group 'dp'"; world_rank: of a peer in requests.
  void wait(MpiRequests& requests, const std::function<std::string()>& what,
            const std::function<RankId(int)>& world_rank);
};

}  // namespace weft
