#include "weft/comm/nccl/watchdog.h"

#include <algorithm>

#include "weft/base/error.h"
#include "weft/base/text.h"
#include "weft/comm/activity.h"

namespace weft::nccl {

Watchdog::Watchdog(World& base, std::shared_ptr<const Library> library) : base_(base), library_(std::move(library)) {}

Watchdog::~Watchdog() {
  {
    const std::lock_guard lock(pause_mutex_);
    stop_ = true;
  }
  pause_.notify_all();
  if (thread_.joinable()) thread_.join();
}

void Watchdog::add(CommHandle& handle, Device& device) {
  const std::lock_guard lock(handles_mutex_);
  handles_.push_back(&handle);
  if (!thread_.joinable()) thread_ = std::thread([this, &device] { work(device); });
}

void Watchdog::remove(CommHandle& handle) {
  const std::lock_guard lock(handles_mutex_);
  std::erase(handles_, &handle);
}

void Watchdog::wake() {
  {
    const std::lock_guard lock(pause_mutex_);
    woken_ = true;
  }
  pause_.notify_all();
}

void Watchdog::fail(const std::string& message) {
  {
    const std::lock_guard lock(failure_mutex_);
    if (failure_.empty()) failure_ = message;
  }
  base_.abort(message);
  wake();
}

bool Watchdog::ended() const {
  try {
    base_.throw_if_ended();
    return false;
  } catch (const PeerError&) {
    return true;
  }
}

void Watchdog::throw_if_ended() const {
  try {
    base_.throw_if_ended();
  } catch (const PeerError& error) {
    const std::lock_guard lock(failure_mutex_);
    if (!failure_.empty() && std::string_view(error.what()) == PeerError(base_.rank(), failure_).what())
      throw RunError(failure_);
    throw;
  }
}

void Watchdog::require_in_time(const std::string& what, double seconds, std::span<const RankId> waits_for) {
  const double timeout = base_.timeout();
  if (seconds > timeout) fail(timeout_report(what, seconds, timeout, waits_for, base_.activities()));
}

std::string Watchdog::activity() const {
  // Any rank may ask at any time, also while this one aborts its communicators. That takes too long to wait for; a
  // check of them does not.
  std::unique_lock lock(handles_mutex_, std::try_to_lock);
  for (int i = 0; i < 100 && !lock; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    [[maybe_unused]] const bool free = lock.try_lock();
  }
  if (!lock) return "";
  std::vector<std::string> parts;
  try {
    for (CommHandle* handle : handles_)
      if (const auto current = handle->queued.current()) parts.push_back(current->what);
  } catch (const std::exception& error) {
    parts.push_back(error.what());
  }
  return parts.empty() ? "" : "on the device: " + join(parts, ", ");
}

void Watchdog::work(Device& device) {
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
      check();
    } catch (const std::exception& error) {
      fail(error.what());
    }
    if (ended()) abort_all();
  }
}

void Watchdog::check() {
  if (ended()) return;
  std::vector<QueuedCollectives::Current> under_way;
  {
    const std::lock_guard lock(handles_mutex_);
    for (CommHandle* handle : handles_) {
      if (auto current = handle->queued.current()) under_way.push_back(std::move(*current));
      const std::unique_lock calls(handle->calls, std::try_to_lock);
      if (!calls || handle->aborted.load()) continue;  // the thread inside the call sees its result
      Result state = success;
      library_->check(library_->ncclCommGetAsyncError(handle->comm, &state), handle->comm);
      if (state != in_progress) library_->check(state, handle->comm);
    }
  }
  for (const QueuedCollectives::Current& current : under_way) {
    require_in_time(current.what, current.seconds, current.waits_for);
    if (ended()) return;
  }
}

void Watchdog::abort_all() {
  const std::lock_guard lock(handles_mutex_);
  std::vector<CommHandle*> alive;
  for (CommHandle* handle : handles_)
    if (!handle->aborted.exchange(true)) alive.push_back(handle);
  if (alive.empty()) return;
  // A thread inside a call returns within microseconds, unless it waits for the peers to connect, or the device's queue
  // is full and it waits for the very kernel to be aborted. Then the only way is to abort during the call, which makes
  // it return.
  constexpr std::chrono::seconds patience(2);
  const auto deadline = QueuedCollectives::Clock::now() + patience;
  std::vector<std::unique_lock<std::mutex>> calls;
  for (CommHandle* handle : alive) {
    calls.emplace_back(handle->calls, std::try_to_lock);
    while (!calls.back() && handle->connected.load() && QueuedCollectives::Clock::now() < deadline) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
      [[maybe_unused]] const bool free = calls.back().try_lock();
    }
  }
  // In one group: each abort first marks its communicator and finally frees it, which waits for the device. Without a
  // group, a kernel of the next communicator, not yet marked, would block that.
  library_->ncclGroupStart();
  for (CommHandle* handle : alive) library_->ncclCommAbort(handle->comm);
  library_->ncclGroupEnd();
}

}  // namespace weft::nccl
