// The collectives that a rank has queued on one communicator and that are not known to be done. An event before and one
// after each let the watchdog's thread see which one the device is running, and for how long.
#pragma once

#include <chrono>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "weft/comm/communicator.h"

namespace weft::nccl {

class QueuedCollectives {
 public:
  using Clock = std::chrono::steady_clock;

  QueuedCollectives(Device& device, std::string group) : device_(device), group_(std::move(group)) {}

  // Called by the rank's thread, around the work it queues on `stream`. waits_for: the ranks whose calls it needs to
  // finish. Operation::none: connecting the group. Nothing is locked while queueing, which may have to wait for the
  // device.
  void begin(Stream& stream, Operation operation, std::uint64_t call, std::span<const RankId> waits_for);
  void end(Stream& stream);

  // The collective the device is running: the first that has begun and has not ended.
  struct Current {
    std::string what;  // "all_gather (call 3) of group 'dp'"
    std::vector<RankId> waits_for;
    double seconds = 0;  // since it was first seen running
  };
  // Called from any thread; RunError if the device has failed.
  std::optional<Current> current();
  bool idle();

 private:
  struct Entry {
    Operation operation = Operation::none;
    std::uint64_t call = 0;
    std::vector<RankId> waits_for;
    std::unique_ptr<Event> before, after;
    bool queued = false;  // `after` is recorded
    std::optional<Clock::time_point> seen;
  };
  void remove_done();  // moves finished entries from queued_ to done_

  Device& device_;
  std::string group_;
  std::mutex mutex_;
  std::deque<Entry> queued_;  // in the order queued, in which a communicator runs them
  std::vector<Entry> done_;   // reused with their events
};

}  // namespace weft::nccl
