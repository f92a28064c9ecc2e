// What the members of one local group share: where they meet, what each brings, and the letter boxes between two.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <vector>

#include "weft/comm/communicator.h"
#include "weft/comm/local/signal.h"

namespace weft {

// What a member brings to a collective. Valid for the others between the first and the last meeting of the call.
struct Post {
  Operation operation = Operation::none;
  DType dtype = DType::f32;
  Reduction reduction = Reduction::sum;
  int root = 0;
  std::int64_t count = 0;  // of operations without counts
  const std::byte* send = nullptr;
  std::byte* receive = nullptr;
  Counts send_counts, receive_counts;
};

// One message from one member to another. Belongs to the sender, which does not leave before it is done with.
struct Parcel {
  enum class State : std::uint8_t { waiting, taken, delivered, refused };
  const std::byte* data = nullptr;
  DType dtype = DType::f32;
  std::int64_t count = 0;
  Nanoseconds posted = 0;
  Nanoseconds through = 0;  // when the emulated links are; set with delivered
  Parcel* next = nullptr;   // in the letter box
  std::atomic<State> state{State::waiting};
  // Where work is queued: points in the sender's stream, when the data is there, and in the receiver's, when it is read.
  std::unique_ptr<Event> sent, read;
};

class LocalGroup {
 public:
  explicit LocalGroup(int size) : members(static_cast<std::size_t>(size)), boxes(members.size() * members.size()) {}

  struct Member {
    Post post;
    Nanoseconds out_through[2] = {0, 0};     // when its emulated outgoing link is through, of even and odd calls
    std::atomic<std::uint64_t> meetings{0};  // it has come to
    // Where work is queued: points in its stream. Its buffers may be read; its part of a reduction is there; it has read
    // those of the others. Each is recorded before a meeting and waited for before the next.
    std::unique_ptr<Event> ready, reduced, done;
  };
  // Parcels from one member to another, first in, first out.
  class Box {
   public:
    void put(Parcel& parcel);
    Parcel* take();                 // marks it taken; null when there is none
    void withdraw(Parcel& parcel);  // if it is still here
    bool empty() const { return count_.load() == 0; }

   private:
    std::mutex mutex_;
    Parcel* first_ = nullptr;
    Parcel* last_ = nullptr;
    std::atomic<int> count_{0};
  };
  Box& box(int from, int to) {
    return boxes[static_cast<std::size_t>(from) * members.size() + static_cast<std::size_t>(to)];
  }

  std::vector<Member> members;
  std::vector<Box> boxes;
  std::atomic<std::uint64_t> arrivals{0};      // at meetings, all members together: n x m when meeting m is complete
  std::atomic<Nanoseconds> latest_arrival{0};  // at the first meeting of the call
  std::atomic<int> copying{0};                 // members that read the others' buffers or posts now
  Signal signal;
};

}  // namespace weft
