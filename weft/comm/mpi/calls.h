// MPI's C calls with their errors as exceptions, and the clock of its waits.
#pragma once

#include <cstdint>

#include <mpi.h>

namespace weft {

// RunError naming the call when `code` is not success. Communicators have MPI_ERRORS_RETURN.
void check_mpi(int code, const char* call);

using Nanoseconds = std::int64_t;
Nanoseconds now_ns();  // of the monotonic clock

// Between two tests of a request: at first returns at once, then sleeps longer and longer, so that a short wait is
// short and a long one leaves the core to those who compute.
class Pace {
 public:
  Pace() : begin_(now_ns()) {}
  void rest() const;

 private:
  Nanoseconds begin_;
};

}  // namespace weft
