// MPI's errors as exceptions, and the clock and the back-off of its waits.
#pragma once

#include <cstdint>

#include <mpi.h>

namespace weft {

// RunError naming the call unless `code` is success. Communicators use MPI_ERRORS_RETURN.
void check_mpi(int code, const char* call);

using Nanoseconds = std::int64_t;
Nanoseconds now_ns();  // of the monotonic clock

// Between two tests of a request: at first returns at once, then sleeps longer and longer, so that short waits stay
// short and long ones leave the core to other threads.
class Backoff {
 public:
  Backoff() : begin_(now_ns()) {}
  void pause() const;

 private:
  Nanoseconds begin_;
};

}  // namespace weft
