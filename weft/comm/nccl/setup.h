// Makes a communicator of NCCL without the danger of hanging in it.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "weft/comm/host_stream.h"
#include "weft/comm/nccl/watch.h"

namespace weft::nccl {

// Runs work(), which may wait for other ranks inside NCCL, on a thread of its own, until it is done, or the run has
// ended, or the timeout is past. Then the thread is left where it is: the process is about to end. host: the base's
// group of the ranks that do the same; what: for the report.
void run_watched(Watch& watch, const Communicator& host, const std::string& what, std::function<void()> work);

struct Setup {
  std::shared_ptr<Link> link;
  bool side_by_side = false;  // two of its members are threads of one process that share a GPU
};
// Collective over the members of `host`, a group of the base's that has several: spreads NCCL's id and makes the
// communicator. UserError, on all members, where several are on one GPU and NCCL is too old for it.
Setup make_link(Watch& watch, Communicator& host, Device& device);

}  // namespace weft::nccl
