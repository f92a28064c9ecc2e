#include "weft/device/cpu/team.h"

#include <algorithm>
#include <system_error>
#include <utility>

#include "weft/base/error.h"

namespace weft {

namespace {

// A hand-over between threads costs some 10 microseconds asleep and 0.2 spinning: spin a little, then sleep.
constexpr int spins = 2000;

void relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

void wait_while(std::atomic<std::uint32_t>& value, std::uint32_t old) {
  for (int i = 0; i < spins; ++i) {
    if (value.load(std::memory_order_acquire) != old) return;
    relax();
  }
  while (value.load(std::memory_order_acquire) == old) value.wait(old, std::memory_order_acquire);
}

}  // namespace

Team::Team(int threads) {
  WEFT_CHECK(threads >= 1, "a team of {}", threads);
  errors_.resize(static_cast<std::size_t>(threads));
  try {
    for (int member = 1; member < threads; ++member) workers_.emplace_back([this, member] { serve(member); });
  } catch (const std::system_error& e) {
    stop();
    throw RunError(
        "one of {} compute threads could not be started ({}): use fewer `threads`, or raise the limit on "
        "processes or memory",
        threads, e.what());
  }
}

Team::~Team() { stop(); }

void Team::stop() {
  stop_.store(true);
  round_.fetch_add(1, std::memory_order_release);
  round_.notify_all();
  for (std::thread& worker : workers_) worker.join();
}

void Team::serve(int member) {
  std::uint32_t seen = 0;
  while (true) {
    wait_while(round_, seen);
    seen = round_.load(std::memory_order_acquire);
    if (stop_.load()) return;
    try {
      (*work_)(member);
    } catch (...) {
      errors_[static_cast<std::size_t>(member)] = std::current_exception();
    }
    if (remaining_.fetch_sub(1, std::memory_order_acq_rel) == 1) remaining_.notify_one();
  }
}

void Team::run(const std::function<void(int)>& work) {
  if (workers_.empty()) return work(0);
  work_ = &work;
  remaining_.store(static_cast<std::uint32_t>(workers_.size()), std::memory_order_relaxed);
  round_.fetch_add(1, std::memory_order_release);
  round_.notify_all();
  try {
    work(0);
  } catch (...) {
    errors_[0] = std::current_exception();
  }
  for (std::uint32_t left = remaining_.load(std::memory_order_acquire); left != 0;
       left = remaining_.load(std::memory_order_acquire))
    wait_while(remaining_, left);
  for (std::exception_ptr& error : errors_)
    if (error) std::rethrow_exception(std::exchange(error, nullptr));
}

void Team::ranges(std::int64_t count, std::int64_t grain, const std::function<void(std::int64_t, std::int64_t)>& work) {
  if (count <= 0) return;
  const std::int64_t parts = std::clamp<std::int64_t>(count / std::max<std::int64_t>(grain, 1), 1, size());
  if (parts == 1) return work(0, count);
  run([&](int member) {
    if (member >= parts) return;
    const std::int64_t begin = count * member / parts, end = count * (member + 1) / parts;
    if (begin < end) work(begin, end);
  });
}

}  // namespace weft
