// An emulated network between thread ranks: transfers complete at absolute deadlines, and waiting for one uses no CPU
// time, so that overlap can be measured on one machine.
//
// Every rank has one full-duplex link that all its lanes share. A transfer that can start at time t (when all its ranks
// have made the call) occupies the outgoing direction for bytes_out / bandwidth, after everything queued there before,
// and the incoming direction for bytes_in / bandwidth likewise. It completes when both directions and the links of its
// senders are done, plus the latency. Meanwhile the waiting thread copies the data; if copying is slower than the
// emulated network, the transfer completes late.
#pragma once

#include <atomic>
#include <limits>
#include <mutex>
#include <string>
#include <string_view>

#include "weft/comm/local/signal.h"
#include "weft/comm/world.h"

namespace weft {

struct EmulatedNetwork {
  double latency = 0;                                          // seconds
  double bandwidth = std::numeric_limits<double>::infinity();  // bytes per second and rank, each way
};

// "latency=100us,bandwidth=2GB/s"; either part may be omitted. Times in ns, us, ms, s; bandwidths in B/s, KB/s, MB/s,
// GB/s, KiB/s, MiB/s, GiB/s, Mbit/s, Gbit/s. UserError with a caret line.
EmulatedNetwork parse_network(std::string_view text);
std::string to_text(const EmulatedNetwork& network);  // in the same form

// The link of one rank. Thread-safe.
class Link {
 public:
  explicit Link(const EmulatedNetwork& network) : network_(network) {}

  struct Times {
    Nanoseconds out = 0, in = 0;  // when each direction is done
  };
  // Queues a transfer that may start at `start`.
  Times reserve(Nanoseconds start, std::int64_t bytes_out, std::int64_t bytes_in);
  // Sleeps until `done_at` + latency, in slices that end early when `ended` is set.
  void complete(Nanoseconds done_at, const std::atomic<bool>& ended);

 private:
  EmulatedNetwork network_;
  std::mutex mutex_;
  Nanoseconds out_busy_until_ = 0, in_busy_until_ = 0;
};

}  // namespace weft
