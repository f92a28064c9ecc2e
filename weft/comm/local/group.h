// What the members of one local group share: barriers, the arguments of the current call, and a mailbox per pair of
// members.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <vector>

#include "weft/comm/communicator.h"
#include "weft/comm/local/signal.h"

namespace weft {

// A member's arguments of a collective. The others may read them between the first and the last barrier of the call.
struct CallArguments {
  Operation operation = Operation::none;
  DType dtype = DType::f32;
  Reduction reduction = Reduction::sum;
  int root = 0;
  std::int64_t count = 0;  // for operations without counts
  const std::byte* send = nullptr;
  std::byte* receive = nullptr;
  Counts send_counts, receive_counts;
};

// A message from one member to another. Owned by the sender, whose call lasts until the message is delivered.
struct LocalMessage {
  enum class State : std::uint8_t { waiting, taken, delivered, refused };
  const std::byte* data = nullptr;
  DType dtype = DType::f32;
  std::int64_t count = 0;
  Nanoseconds posted = 0;
  Nanoseconds done_at = 0;       // when the emulated links have carried it; set with delivered
  LocalMessage* next = nullptr;  // in the mailbox
  std::atomic<State> state{State::waiting};
  // For queued work: points in the sender's stream, when the data is ready, and in the receiver's, when it has been
  // read.
  std::unique_ptr<Event> sent, read;
};

class LocalGroup {
 public:
  explicit LocalGroup(int size) : members(static_cast<std::size_t>(size)), mailboxes(members.size() * members.size()) {}

  struct Member {
    CallArguments arguments;
    Nanoseconds out_done_at[2] = {0, 0};     // when its emulated outgoing link is done, of even and odd calls
    std::atomic<std::uint64_t> barriers{0};  // that it has reached
    // For queued work: points in its stream. Its buffers may be read; its part of a reduction is ready; it has read the
    // others' buffers. Each is recorded before a barrier and waited for before the next.
    std::unique_ptr<Event> ready, reduced, done;
  };
  // Messages from one member to another, first in, first out.
  class Mailbox {
   public:
    void put(LocalMessage& message);
    LocalMessage* take();                  // marks it taken; null when there is none
    void withdraw(LocalMessage& message);  // if it is still here
    bool empty() const { return count_.load() == 0; }

   private:
    std::mutex mutex_;
    LocalMessage* first_ = nullptr;
    LocalMessage* last_ = nullptr;
    std::atomic<int> count_{0};
  };
  Mailbox& mailbox(int from, int to) {
    return mailboxes[static_cast<std::size_t>(from) * members.size() + static_cast<std::size_t>(to)];
  }

  std::vector<Member> members;
  std::vector<Mailbox> mailboxes;
  std::atomic<std::uint64_t> arrivals{0};      // at barriers, by all members: n x m when barrier m is complete
  std::atomic<Nanoseconds> latest_arrival{0};  // at the first barrier of the call
  std::atomic<int> copying{0};                 // members that currently read the others' buffers or arguments
  Signal signal;
};

}  // namespace weft
