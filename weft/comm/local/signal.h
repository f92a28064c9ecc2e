// Sleeping until a condition over atomics holds: a short spin, then a futex (inside the condition variable), so that a
// quick hand-over costs no system call and a long wait no processor.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <mutex>

namespace weft {

using Nanoseconds = std::int64_t;  // of the monotonic clock, or between two of its times

inline Nanoseconds now_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

class Signal {
 public:
  // To be called after the atomics have changed, by sequentially consistent operations.
  void notify() {
    if (sleepers_.load() == 0) return;
    { const std::lock_guard lock(mutex_); }  // a waiter between its last look and its sleep holds the mutex
    changed_.notify_all();
  }

  // True when ready() holds, false when it does not at the deadline. ready() reads sequentially consistent atomics.
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
