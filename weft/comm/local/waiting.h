// How a LocalCommunicator waits, and reads its peers' memory safely.
#pragma once

#include <algorithm>

#include "weft/base/error.h"
#include "weft/comm/local/communicator.h"

namespace weft {

// While it exists, this member may read the others' arguments and buffers, and none of them leaves its call: a failing
// member either sees this mark and waits, or has ended the run before, and then this constructor throws.
class LocalCommunicator::Reading {
 public:
  explicit Reading(LocalCommunicator& by) : by_(by) {
    by.group_->copying.fetch_add(1);
    if (!by.state_->ended().load()) return;
    stop();
    by.state_->throw_if_ended();
  }
  ~Reading() { stop(); }
  Reading(const Reading&) = delete;
  Reading& operator=(const Reading&) = delete;

 private:
  void stop() {
    if (by_.group_->copying.fetch_sub(1) == 1 && by_.state_->ended().load()) by_.group_->signal.notify();
  }
  LocalCommunicator& by_;
};

template <class Ready, class Missing>
void LocalCommunicator::wait(const Ready& ready, const Missing& missing) {
  const Nanoseconds begin = now_ns();
  const double timeout = state_->timeout(self());
  const Nanoseconds deadline = begin + static_cast<Nanoseconds>(std::min(timeout, 1e9) * 1e9);
  while (!group_->signal.wait_until(deadline, [&] { return ready() || state_->ended().load(); })) {
    const std::vector<RankId> absent = missing();
    if (absent.empty()) continue;  // the last one has just arrived
    const double waited = static_cast<double>(now_ns() - begin) * 1e-9;
    const std::string report = timeout_report(call_text(), waited, timeout, absent, state_->activities());
    if (state_->fail(self(), report)) throw RunError(report);
  }
  if (!ready()) state_->throw_if_ended();
}

}  // namespace weft
