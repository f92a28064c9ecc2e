// A posted message that is not complete yet, and the batch of messages that a lane waits for together.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <optional>

#include "weft/comm/messages.h"

namespace weft {

// Messages that are waited for together. Guarded by the engine's mutex.
struct PostedBatch {
  std::condition_variable changed;
  int open = 0;  // messages not complete
  std::optional<Messages::Mismatch> mismatch;
};

struct Posted {
  PostedBatch* batch = nullptr;
  bool receive = false;
  int peer = 0;  // in the group
  int rank = 0;  // in the world
  std::uint64_t group = 0;
  std::uint32_t tag = 0;
  std::byte* data = nullptr;  // not written if it is sent
  std::int64_t bytes = 0, width = 1;

  // Guarded by the engine's mutex for a receive, by the connection's for a send.
  std::int64_t moved = 0;   // bytes of a large message sent or received so far
  std::uint64_t offer = 0;  // of a large message, once known
  bool matched = false;     // a receive whose offer has arrived
  bool busy = false;        // the engine is writing to `data`
  bool done = false;        // guarded by the engine's mutex for both
};

}  // namespace weft
