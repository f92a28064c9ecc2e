// Messages between pairs of ranks, over MPI or TCP. MessageCommunicator builds every operation from them.
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
// with the same tag match in the order they were posted. Used by one thread at a time. Memory belongs to a message
// until the wait is done or the messages are abandoned.
class Messages {
 public:
  virtual ~Messages() = default;
  Messages(const Messages&) = delete;
  Messages& operator=(const Messages&) = delete;

  // Empty messages are sent too, so that wrong counts are noticed and no rank runs ahead.
  virtual void send(int peer, int tag, const std::byte* data, std::int64_t bytes) = 0;
  // width: bytes per element, for mismatch().
  virtual void receive(int peer, int tag, std::byte* data, std::int64_t bytes, std::int64_t width) = 0;

  enum class Outcome : unsigned char { done, ended, late };
  // Until all are complete or one has the wrong size (done), the run has ended (ended), or the time is up (late).
  virtual Outcome wait(double seconds) = 0;
  // Peers with incomplete messages, each once, in ascending order.
  virtual std::vector<int> pending_peers() const = 0;
  // A receive whose message has a different size than it expects, if the last wait found one.
  struct Mismatch {
    int peer;
    std::int64_t sent, expected;  // elements
  };
  virtual const std::optional<Mismatch>& mismatch() const = 0;
  // After a failure: when it returns, no message reads or writes our memory any more, as far as the transport allows.
  virtual void abandon() = 0;

 protected:
  Messages() = default;
};

// Waits for the posted messages. After the rank's timeout it ends the run with a report. Then, or when another rank
// ended the run, it abandons the messages and throws. what: "all_gather (call 3) of group 'dp'"; world_rank: maps a
// peer to its rank in the world.
void finish(Messages& messages, Control& control, const std::function<std::string()>& what,
            const std::function<RankId(int)>& world_rank);

}  // namespace weft
