#include "weft/comm/nccl/watch.h"

#include <algorithm>

#include "weft/base/error.h"
#include "weft/base/text.h"
#include "weft/comm/standing.h"

namespace weft::nccl {

Watch::Watch(World& base, std::shared_ptr<const Library> library) : base_(base), library_(std::move(library)) {}

Watch::~Watch() {
  {
    const std::lock_guard lock(pause_mutex_);
    stop_ = true;
  }
  pause_.notify_all();
  if (thread_.joinable()) thread_.join();
}

void Watch::add(Link& link, Device& device) {
  const std::lock_guard lock(links_mutex_);
  links_.push_back(&link);
  if (!thread_.joinable()) thread_ = std::thread([this, &device] { work(device); });
}

void Watch::remove(Link& link) {
  const std::lock_guard lock(links_mutex_);
  std::erase(links_, &link);
}

void Watch::wake() {
  {
    const std::lock_guard lock(pause_mutex_);
    woken_ = true;
  }
  pause_.notify_all();
}

void Watch::fail(const std::string& message) {
  {
    const std::lock_guard lock(failure_mutex_);
    if (failure_.empty()) failure_ = message;
  }
  base_.abort(message);
  wake();
}

bool Watch::ended() const {
  try {
    base_.throw_if_ended();
    return false;
  } catch (const PeerError&) {
    return true;
  }
}

void Watch::throw_if_ended() const {
  try {
    base_.throw_if_ended();
  } catch (const PeerError& error) {
    const std::lock_guard lock(failure_mutex_);
    if (!failure_.empty() && std::string_view(error.what()) == PeerError(base_.rank(), failure_).what())
      throw RunError(failure_);
    throw;
  }
}

void Watch::require_in_time(const std::string& what, double seconds, std::span<const RankId> waits_for) {
  const double timeout = base_.timeout();
  if (seconds > timeout) fail(timeout_report(what, seconds, timeout, waits_for, base_.standings()));
}

std::string Watch::standing() const {
  // Asked by any rank at any time, also while this one ends its communicators: it does not wait for that, but for a look
  // at them it does.
  std::unique_lock lock(links_mutex_, std::try_to_lock);
  for (int i = 0; i < 100 && !lock; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    [[maybe_unused]] const bool free = lock.try_lock();
  }
  if (!lock) return "";
  std::vector<std::string> parts;
  try {
    for (Link* link : links_)
      if (const auto current = link->flights.current()) parts.push_back(current->what);
  } catch (const std::exception& error) {
    parts.push_back(error.what());
  }
  return parts.empty() ? "" : "on the device: " + join(parts, ", ");
}

void Watch::work(Device& device) {
  constexpr std::chrono::milliseconds period(10);
  try {
    device.bind_thread();
  } catch (const std::exception& error) {
    fail(error.what());
  }
  while (true) {
    {
      std::unique_lock lock(pause_mutex_);
      pause_.wait_for(lock, period, [this] { return stop_ || woken_; });
      if (stop_) return;
      woken_ = false;
    }
    try {
      look();
    } catch (const std::exception& error) {
      fail(error.what());
    }
    if (ended()) abort_links();
  }
}

void Watch::look() {
  if (ended()) return;
  std::vector<Flights::Current> under_way;
  {
    const std::lock_guard lock(links_mutex_);
    for (Link* link : links_) {
      if (auto current = link->flights.current()) under_way.push_back(std::move(*current));
      const std::unique_lock calls(link->calls, std::try_to_lock);
      if (!calls || link->aborted.load()) continue;  // whoever is inside a call sees its result
      Result state = success;
      library_->check(library_->ncclCommGetAsyncError(link->comm, &state), link->comm);
      if (state != in_progress) library_->check(state, link->comm);
    }
  }
  for (const Flights::Current& current : under_way) {
    require_in_time(current.what, current.seconds, current.waits_for);
    if (ended()) return;
  }
}

void Watch::abort_links() {
  const std::lock_guard lock(links_mutex_);
  std::vector<Link*> alive;
  for (Link* link : links_)
    if (!link->aborted.exchange(true)) alive.push_back(link);
  if (alive.empty()) return;
  // A thread that is inside a call returns within microseconds, unless it waits for the peers to connect, or the device's
  // queue is full and it waits for the very kernel that is to be ended: then there is nothing better than to abort under
  // its feet, which makes NCCL's call return.
  constexpr std::chrono::seconds patience(2);
  const auto deadline = Flights::Clock::now() + patience;
  std::vector<std::unique_lock<std::mutex>> calls;
  for (Link* link : alive) {
    calls.emplace_back(link->calls, std::try_to_lock);
    while (!calls.back() && link->connected.load() && Flights::Clock::now() < deadline) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
      [[maybe_unused]] const bool free = calls.back().try_lock();
    }
  }
  // In one group: each marks its communicator first and frees it in the end, which waits for the device; a kernel of the
  // next communicator, not yet marked, would keep it waiting.
  library_->ncclGroupStart();
  for (Link* link : alive) library_->ncclCommAbort(link->comm);
  library_->ncclGroupEnd();
}

}  // namespace weft::nccl
