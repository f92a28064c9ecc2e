// The collectives that a rank has queued on one communicator and that are not known to be done. The device tells by
// events, one before and one behind each, so that a watching thread sees which one it is at, and for how long.
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

class Flights {
 public:
  using Clock = std::chrono::steady_clock;

  Flights(Device& device, std::string group) : device_(device), group_(std::move(group)) {}

  // By the rank's thread, around what it queues on `stream`. waits_for: the ranks without which it does not end.
  // Operation::none: the connecting of the group. Queueing may have to wait for the device, so nothing is locked then.
  void begin(Stream& stream, Operation operation, std::uint64_t call, std::span<const RankId> waits_for);
  void end(Stream& stream);

  // What the device is at: the first collective that has begun and has not ended.
  struct Current {
    std::string what;  // "all_gather (call 3) of group 'dp'"
    std::vector<RankId> waits_for;
    double seconds = 0;  // since someone saw that it had begun
  };
  // From any thread; RunError when the device has failed.
  std::optional<Current> current();
  bool idle();

 private:
  struct Flight {
    Operation operation = Operation::none;
    std::uint64_t call = 0;
    std::vector<RankId> waits_for;
    std::unique_ptr<Event> before, behind;
    bool queued = false;  // `behind` is recorded
    std::optional<Clock::time_point> seen;
  };
  void land();  // takes out those that are done

  Device& device_;
  std::string group_;
  std::mutex mutex_;
  std::deque<Flight> flights_;  // in the order queued, which is the order in which a communicator runs them
  std::vector<Flight> landed_;  // to be used again, with their events
};

}  // namespace weft::nccl
