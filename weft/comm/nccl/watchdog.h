// Monitors the communicators of one rank. Their work is only queued, and a kernel whose peer never arrives spins until
// it is aborted. So a thread checks every 10 ms whether a collective takes longer than the timeout, whether NCCL has
// noticed an error, and whether the run has ended elsewhere. Then it ends the run and aborts all communicators, so that
// the streams drain, and threads that wait for them continue and find the reason (throw_if_ended).
#pragma once

#include <condition_variable>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "weft/comm/nccl/comm_handle.h"
#include "weft/comm/nccl/library.h"
#include "weft/comm/world.h"

namespace weft::nccl {

class Watchdog {
 public:
  Watchdog(World& base, std::shared_ptr<const Library> library);
  ~Watchdog();  // all communicators have been removed
  Watchdog(const Watchdog&) = delete;
  Watchdog& operator=(const Watchdog&) = delete;

  const Library& library() const { return *library_; }
  const std::shared_ptr<const Library>& shared_library() const { return library_; }

  void add(CommHandle& handle, Device& device);  // the first one starts the thread
  void remove(CommHandle& handle);

  // This rank failed; does nothing if the run has already ended.
  void fail(const std::string& message);
  bool ended() const;
  // RunError if this rank's fail() ended the run, PeerError if another rank's did.
  void throw_if_ended() const;
  // Checks at once instead of after the usual period.
  void wake();
  // Aborts all communicators unless that has been done; returns when they are aborted.
  void abort_all();
  // What the device is running, for reports: "on the device: all_gather (call 3) of group 'dp'"; "" if nothing.
  std::string activity() const;
  // Ends the run with a report if `seconds` exceed the timeout.
  void require_in_time(const std::string& what, double seconds, std::span<const RankId> waits_for);

 private:
  void work(Device& device);
  void check();

  World& base_;
  std::shared_ptr<const Library> library_;
  mutable std::mutex failure_mutex_;
  std::string failure_;  // of this rank
  mutable std::mutex handles_mutex_;
  std::vector<CommHandle*> handles_;
  std::mutex pause_mutex_;
  std::condition_variable pause_;
  bool stop_ = false, woken_ = false;
  std::thread thread_;
};

}  // namespace weft::nccl
