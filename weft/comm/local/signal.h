// Sleeping until a condition over atomics holds: a short spin, then a futex (inside the condition variable). A quick
// hand-over needs no system call, and a long wait no CPU time.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <mutex>

namespace weft {

using Nanoseconds = std::int64_t;  // of the monotonic clock, or a difference of two times

inline Nanoseconds now_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

class Signal {
 public:
  // Called after the atomics have changed, by sequentially consistent operations.
  void notify() {
    if (sleepers_.load() == 0) return;
    { const std::lock_guard lock(mutex_); }  // a waiter holds the mutex between its last check and its sleep
    changed_.notify_all();
  }

  // True when ready() holds, false if it does not by the deadline. ready() reads sequentially consistent atomics.
  template <class Ready>
  bool wait_until(Nanoseconds deadline, const Ready& ready) {
    constexpr Nanoseconds spin = 3'000;
    const Nanoseconds spin_end = now_ns() + spin;
    do {
      for (int i = 0; i < 16; ++i) {
        if (ready()) return true;
#if defined(__x86_64__)
        __builtin_ia32_pause();
#endif
      }
    } while (now_ns() < spin_end);
    std::unique_lock lock(mutex_);
    sleepers_.fetch_add(1);
    const std::chrono::steady_clock::time_point end{std::chrono::nanoseconds(deadline)};
    const bool held = changed_.wait_until(lock, end, ready);
    sleepers_.fetch_sub(1);
    return held;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::atomic<int> sleepers_{0};
};

}  // namespace weft
