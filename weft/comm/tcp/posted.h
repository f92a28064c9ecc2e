// A message that a lane has posted, until it is complete, and the lane's messages together.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <optional>

#include "weft/comm/messages.h"

namespace weft {

// The messages that are waited for together. Guarded by the engine's mutex.
struct PostedBatch {
  std::condition_variable changed;
  int open = 0;  // messages not complete
  std::optional<Messages::Misfit> misfit;
};

struct Posted {
  PostedBatch* batch = nullptr;
  bool receive = false;
  int peer = 0;  // of the group
  int rank = 0;  // of the world
  std::uint64_t group = 0;
  std::uint32_t tag = 0;
  std::byte* data = nullptr;  // only read where it is sent
  std::int64_t bytes = 0, width = 1;

  // A receive: guarded by the engine's mutex. A send: by its connection's.
  std::int64_t moved = 0;   // bytes of a large one that went or came
  std::uint64_t offer = 0;  // of a large one, when it is known
  bool matched = false;     // a receive whose offer came
  bool busy = false;        // the engine writes to `data` just now
  bool done = false;        // by the engine's mutex, for both
};

}  // namespace weft
