// What comes in over one connection: finds frames in a stream of bytes, and matches messages with the receives that
// lanes have posted, in order. Large messages are read straight into their place.
#pragma once

#include <deque>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "weft/comm/tcp/frame.h"
#include "weft/comm/tcp/posted.h"

namespace weft {

class Incoming {
 public:
  struct Calls {  // without a mutex held
    std::function<void(std::uint32_t word, const std::string& text)> word;
    std::function<void(std::uint64_t offer)> accepted;     // by the peer: one of ours
    std::function<void(std::uint64_t offer)> send_accept;  // of one of the peer's
  };
  // The mutex is the engine's, of all messages of this process.
  Incoming(int fd, std::mutex& mutex, Calls calls);

  // By any thread.
  void post(Posted& message);
  void abandon(Posted& message);  // nothing writes to its memory when this returns

  // By the engine's thread: reads what is there, up to some amount. Empty, or why the connection is over. `staging` is
  // memory for what has no place yet.
  std::string read(std::vector<std::byte>& staging);

 private:
  struct Arrival {
    Frame frame;  // a whole message or an offer
    std::vector<std::byte> data;
  };
  struct Channel {
    std::deque<Posted*> posted;
    std::deque<Arrival> arrived;  // one of the two is empty
  };
  using Key = std::pair<std::uint64_t, std::uint32_t>;  // group and tag

  void parse(const std::byte* data, std::size_t bytes);
  void begin_frame();
  void end_frame(const std::byte* data);  // of frame_.bytes
  void take_whole(const std::byte* data);
  void take_offer();
  void take_part(const std::byte* data, std::size_t bytes);
  Posted* first_posted(const Key& key);  // and takes it out; null if there is none
  // Under the mutex:
  void complete(Posted& message);
  bool fits(Posted& message, std::uint64_t sent);  // or notes the misfit, and completes it
  void match(Posted& message, std::uint64_t offer);
  void moved(Posted& message, std::size_t bytes);

  int fd_;
  std::mutex& mutex_;
  Calls calls_;
  std::map<Key, Channel> channels_;                     // under the mutex, as the next
  std::unordered_map<std::uint64_t, Posted*> matched_;  // by offer, on their way; null where it was abandoned

  Frame frame_;                     // the thread's own, as all below
  std::size_t head_ = 0;            // bytes of the frame's head that came
  std::size_t left_ = 0;            // bytes of its payload still to come
  std::vector<std::byte> payload_;  // of a word or a whole message that came in pieces
};

}  // namespace weft
