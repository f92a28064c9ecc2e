#include "weft/comm/mpi/calls.h"

#include <algorithm>
#include <chrono>
#include <ctime>
#include <string>

#include <sys/prctl.h>

#include "weft/base/error.h"

namespace weft {

void check_mpi(int code, const char* call) {
  if (code == MPI_SUCCESS) return;
  char text[MPI_MAX_ERROR_STRING + 1] = {};
  int length = 0;
  MPI_Error_string(code, text, &length);
  throw RunError("{} failed: {}", call, std::string(text, static_cast<std::size_t>(length)));
}

Nanoseconds now_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

void Backoff::pause() const {
  // A test and its sleep cost 5 to 20 us of CPU time. Sleeping an eighth of the time waited so far keeps short waits
  // short; a thirty-second keeps long waits cheap, and late by 3 % at most.
  constexpr Nanoseconds spin = 10'000, shortest = 5'000, brief = 100'000, longest = 1'000'000;
  const Nanoseconds waited = now_ns() - begin_;
  if (waited < spin) return;
  const Nanoseconds sleep = std::clamp(std::max(std::min(waited / 8, brief), waited / 32), shortest, longest);
  prctl(PR_SET_TIMERSLACK, 1UL);  // of this thread; the default of 50 us would double the sleep
  const timespec length{0, static_cast<long>(sleep)};
  nanosleep(&length, nullptr);
}

}  // namespace weft
