// How far a long piece of work is, once a second on one line of a terminal; nothing where stderr is none.
#pragma once

#include <chrono>
#include <cstdio>
#include <string>

#include <fmt/format.h>
#include <unistd.h>

#include "weft/base/text.h"

namespace weft {

class Progress {
 public:
  // done: what has happened to the bytes, "tokenized".
  Progress(std::string done, double total)
      : done_(std::move(done)), total_(total), terminal_(::isatty(STDERR_FILENO) != 0) {}
  ~Progress() {
    if (shown_) fmt::print(stderr, "\n");
  }
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  void at(double bytes) {
    const auto now = Clock::now();
    if (!terminal_ || now - last_ < std::chrono::seconds(1)) return;
    last_ = now;
    shown_ = true;
    const double seconds = seconds_so_far();
    fmt::print(stderr, "\r{} {} of {} ({:.0f} %), {}/s, {} left   ", done_, human_bytes(bytes), human_bytes(total_),
               100 * bytes / total_, human_bytes(bytes / seconds), human_seconds((total_ - bytes) * seconds / bytes));
    std::fflush(stderr);
  }
  double seconds_so_far() const { return std::chrono::duration<double>(Clock::now() - begin_).count(); }

 private:
  using Clock = std::chrono::steady_clock;
  std::string done_;
  double total_;
  bool terminal_, shown_ = false;
  Clock::time_point begin_ = Clock::now(), last_ = begin_;
};

}  // namespace weft
