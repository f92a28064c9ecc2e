// One communicator of NCCL, as the rank's thread uses it and another watches it.
#pragma once

#include <atomic>
#include <mutex>
#include <string>

#include "weft/comm/nccl/flights.h"
#include "weft/comm/nccl/library.h"

namespace weft::nccl {

struct Link {
  Link(Device& device, const std::string& group, Comm* made) : comm(made), flights(device, group) {}
  Comm* comm;
  // Held while a thread is inside a call of NCCL on `comm`: an abort frees it.
  std::mutex calls;
  std::atomic<bool> connected{false};  // calls only queue, and return soon
  std::atomic<bool> aborted{false};
  Flights flights;
};

}  // namespace weft::nccl
