// Messages between pairs of ranks, which MPI and TCP move alike. A MessageCommunicator makes every operation of them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "weft/base/ids.h"
#include "weft/comm/control.h"

namespace weft {

// This rank's end of the messages of one group: some are posted, then all are waited for. Between two ranks, messages
// of one tag match in the order they were posted. One thread uses it at a time. Memory belongs to a message until the
// wait is done or the messages are abandoned.
class Messages {
 public:
  virtual ~Messages() = default;
  Messages(const Messages&) = delete;
  Messages& operator=(const Messages&) = delete;

  // Empty messages are sent too: so wrong counts are noticed, and nobody runs ahead.
  virtual void send(int peer, int tag, const std::byte* data, std::int64_t bytes) = 0;
  // width: bytes an element, for misfit().
  virtual void receive(int peer, int tag, std::byte* data, std::int64_t bytes, std::int64_t width) = 0;

  enum class Outcome : unsigned char { done, ended, late };
  // Until all are complete or one does not fit (done), the run has ended, or so many seconds are past.
  virtual Outcome wait(double seconds) = 0;
  // Peers with messages that are not complete, each once, in their order.
  virtual std::vector<int> pending_peers() const = 0;
  // A receive that was sent another number of elements than it expects, if the last wait found one.
  struct Misfit {
    int peer;
    std::int64_t sent, expected;  // elements
  };
  virtual const std::optional<Misfit>& misfit() const = 0;
  // After a failure: when it returns, no message reads or writes our memory any more, as far as the transport can help.
  virtual void abandon() = 0;

 protected:
  Messages() = default;
};

// Waits for the messages posted. Past the rank's timeout it ends the run with a report; then, and when another rank
// ended it, the messages are abandoned and it throws. what: "all_gather (call 3) of group 'dp'"; world_rank: of a peer.
void finish(Messages& messages, Control& control, const std::function<std::string()>& what,
            const std::function<RankId(int)>& world_rank);

}  // namespace weft
