// The threads that share the work of one stream. Work is cut into fixed ranges, so results never depend on timing.
#pragma once

#include <atomic>
#include <cstdint>
#include <exception>
#include <functional>
#include <thread>
#include <vector>

namespace weft {

class Team {
 public:
  explicit Team(int threads);  // the caller is one of them
  ~Team();
  Team(const Team&) = delete;
  Team& operator=(const Team&) = delete;

  int size() const { return static_cast<int>(workers_.size()) + 1; }
  // Runs work(member) for member 0 .. size() - 1 at once; the caller is member 0. Rethrows the first exception.
  void run(const std::function<void(int)>& work);
  // Cuts [0, count) into at most size() ranges of at least `grain` and runs work(begin, end) on each.
  void ranges(std::int64_t count, std::int64_t grain, const std::function<void(std::int64_t, std::int64_t)>& work);

 private:
  void serve(int member);
  void stop();

  std::vector<std::thread> workers_;
  std::vector<std::exception_ptr> errors_;
  const std::function<void(int)>* work_ = nullptr;
  std::atomic<std::uint32_t> round_{0};      // a new number is a new piece of work
  std::atomic<std::uint32_t> remaining_{0};  // workers still busy with it
  std::atomic<bool> stop_{false};
};

}  // namespace weft
