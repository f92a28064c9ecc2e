// Makes an NCCL communicator without the risk of hanging in NCCL.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "weft/comm/host_stream.h"
#include "weft/comm/nccl/watchdog.h"

namespace weft::nccl {

// Runs work(), which may wait for other ranks inside NCCL, on a thread of its own until it is done, the run has ended,
// or the timeout has passed. In the last two cases the thread is abandoned: the process is about to end. host: the
// base's group of the ranks that do the same; what: for the report.
void run_watched(Watchdog& watchdog, const Communicator& host, const std::string& what, std::function<void()> work);

struct Setup {
  std::shared_ptr<CommHandle> handle;
  bool threads_share_gpu = false;  // two of its members are threads of one process that share a GPU
};
// Collective over the members of `host`, a group of the base with several members: distributes NCCL's id and makes the
// communicator. UserError on all members if several are on one GPU and NCCL is too old for that.
Setup make_comm(Watchdog& watchdog, Communicator& host, Device& device);

}  // namespace weft::nccl
