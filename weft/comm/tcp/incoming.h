// The incoming side of one connection: parses frames and matches messages with posted receives, in order. Large
// messages are read directly into their destination.
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
  struct Callbacks {  // called without a mutex held
    std::function<void(std::uint32_t kind, const std::string& text)> control;
    std::function<void(std::uint64_t offer)> accepted;     // the peer accepted our offer
    std::function<void(std::uint64_t offer)> send_accept;  // we accept the peer's offer
  };
  // The mutex is the engine's, for all messages of this process.
  Incoming(int fd, std::mutex& mutex, Callbacks callbacks);

  // Called by any thread.
  void post(Posted& message);
  void abandon(Posted& message);  // nothing writes to its memory after this returns

  // Called by the engine's thread: reads available data, up to a limit. Returns empty, or why the connection is closed.
  // `staging` is memory for data without a destination yet.
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
  Posted* first_posted(const Key& key);  // removes it; null if there is none
  // With the mutex held:
  void complete(Posted& message);
  bool fits(Posted& message, std::uint64_t sent);  // otherwise notes the mismatch and completes it
  void match(Posted& message, std::uint64_t offer);
  void moved(Posted& message, std::size_t bytes);

  int fd_;
  std::mutex& mutex_;
  Callbacks callbacks_;
  std::map<Key, Channel> channels_;                     // guarded by the mutex, as matched_
  std::unordered_map<std::uint64_t, Posted*> matched_;  // by offer, being received; null if abandoned

  Frame frame_;                     // used by the thread alone, as everything below
  std::size_t head_ = 0;            // bytes of the frame's head received
  std::size_t left_ = 0;            // bytes of its payload still missing
  std::vector<std::byte> payload_;  // of a control or whole message that arrived in pieces
};

}  // namespace weft
