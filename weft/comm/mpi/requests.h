// The messages of one call under way: posted, then waited for by testing and sleeping.
#pragma once

#include <atomic>
#include <optional>
#include <vector>

#include "weft/comm/mpi/calls.h"

namespace weft {

class MpiRequests {
 public:
  void send(MPI_Comm comm, int peer, int tag, const std::byte* data, std::int64_t bytes);
  // width: bytes an element, for misfit().
  void receive(MPI_Comm comm, int peer, int tag, std::byte* data, std::int64_t bytes, std::int64_t width);

  enum class Outcome : unsigned char { done, ended, late };
  // Until all are complete, `ended` is set, or the deadline is past. After `done` the list is empty again.
  Outcome wait(const std::atomic<bool>& ended, Nanoseconds deadline);
  // Peers with messages that are not complete, each once.
  std::vector<int> pending_peers() const;
  // A receive that was sent another number of elements than it expects, if there was one.
  struct Misfit {
    int peer;
    std::int64_t sent, expected;  // elements
  };
  const std::optional<Misfit>& misfit() const { return misfit_; }

  // After a failure: when it returns, no message writes to our memory any more. Receives that found no sender are
  // cancelled; the others are on their way and complete, as every rank's control thread keeps MPI going.
  // Sends that found no receiver are left alone: MPI cannot cancel them, and nobody will ask for their data.
  void abandon();

 private:
  struct Message {
    int peer;
    bool receive;
    std::int64_t bytes, width;
  };
  bool test();  // true when all are complete

  std::vector<MPI_Request> requests_;
  std::vector<Message> messages_;
  std::vector<int> indices_;
  std::vector<MPI_Status> statuses_;
  std::optional<Misfit> misfit_;
};

}  // namespace weft
