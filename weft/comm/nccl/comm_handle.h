// An NCCL communicator, which the rank's thread uses and the watchdog's thread observes.
#pragma once

#include <atomic>
#include <mutex>
#include <string>

#include "weft/comm/nccl/library.h"
#include "weft/comm/nccl/queued_collectives.h"

namespace weft::nccl {

struct CommHandle {
  CommHandle(Device& device, const std::string& group, Comm* made) : comm(made), queued(device, group) {}
  Comm* comm;
  // Held while a thread is inside an NCCL call on `comm`, since an abort frees it.
  std::mutex calls;
  std::atomic<bool> connected{false};  // from then on, calls only queue and return soon
  std::atomic<bool> aborted{false};
  QueuedCollectives queued;
};

}  // namespace weft::nccl
