// Looks after the communicators of one rank. Their work is only queued, and a kernel whose peer does not come spins
// until someone ends it: a thread looks every 10 ms whether a collective takes longer than the timeout, whether NCCL has
// noticed an error, and whether the run has ended elsewhere. Then it ends the run, aborts all communicators, so that the
// streams run empty, and whoever waits for them goes on and finds the reason (throw_if_ended).
#pragma once

#include <condition_variable>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "weft/comm/nccl/library.h"
#include "weft/comm/nccl/link.h"
#include "weft/comm/world.h"

namespace weft::nccl {

class Watch {
 public:
  Watch(World& base, std::shared_ptr<const Library> library);
  ~Watch();  // all links are removed
  Watch(const Watch&) = delete;
  Watch& operator=(const Watch&) = delete;

  const Library& library() const { return *library_; }
  const std::shared_ptr<const Library>& shared_library() const { return library_; }

  void add(Link& link, Device& device);  // the first one starts the thread
  void remove(Link& link);

  // This rank failed; does nothing when the run has ended already.
  void fail(const std::string& message);
  bool ended() const;
  // RunError when this rank's fail() was the first, PeerError when it was another's.
  void throw_if_ended() const;
  // Looks at once instead of after a while.
  void wake();
  // Aborts all communicators, if that has not been done; returns when it is.
  void abort_links();
  // What the device is at, for reports: "on the device: all_gather (call 3) of group 'dp'"; "" for nothing.
  std::string standing() const;
  // Ends the run with a report when `seconds` are more than the timeout.
  void require_in_time(const std::string& what, double seconds, std::span<const RankId> waits_for);

 private:
  void work(Device& device);
  void look();

  World& base_;
  std::shared_ptr<const Library> library_;
  mutable std::mutex failure_mutex_;
  std::string failure_;  // of this rank
  mutable std::mutex links_mutex_;
  std::vector<Link*> links_;
  std::mutex pause_mutex_;
  std::condition_variable pause_;
  bool stop_ = false, woken_ = false;
  std::thread thread_;
};

}  // namespace weft::nccl
