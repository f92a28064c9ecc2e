// The outgoing side of one connection: what is sent, in which order, and how far it got. Any thread may add and write.
#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>

#include "weft/comm/tcp/frame.h"
#include "weft/comm/tcp/posted.h"

namespace weft {

class Outgoing {
 public:
  // done: called for every message that is sent, with this object's mutex held.
  // want_write: likewise, to start or stop watching whether the socket is writable.
  Outgoing(int fd, std::function<void(Posted&)> done, std::function<void(bool)> want_write);

  void send(Posted& message);
  void send_control(std::uint32_t kind, std::shared_ptr<const std::string> text);
  void send_accept(std::uint64_t offer);
  void accepted(std::uint64_t offer);  // the peer accepted it
  // After this returns, the message's memory is not read any more.
  void abandon(Posted& message);
  // Writes as much as the socket accepts.
  void write();
  // Nothing can be sent any more.
  void close();
  bool idle();  // all control messages are written, or never will be

 private:
  struct Entry {
    Frame frame;
    Posted* message = nullptr;                // for a message's frame
    std::shared_ptr<const std::string> text;  // for a control message
  };

  bool next();        // takes the next frame to write; false when there is none
  bool write_some();  // false when the socket accepts no more
  void finish_frame();
  void write_locked();

  int fd_;
  std::function<void(Posted&)> done_;
  std::function<void(bool)> want_write_;
  std::mutex mutex_;
  std::deque<Entry> control_;                          // sent first; includes accepts
  std::deque<Entry> messages_;                         // whole ones and offers
  std::unordered_map<std::uint64_t, Posted*> offers_;  // not accepted yet
  std::deque<Posted*> parts_;                          // accepted: sent in turns, one part each
  std::uint64_t last_offer_ = 0;
  bool closed_ = false;
  bool watched_ = false;

  bool writing_ = false;
  Entry current_;
  const std::byte* payload_ = nullptr;  // null: zeros, in place of an abandoned message's memory
  std::size_t written_ = 0;             // bytes of head and payload
};

}  // namespace weft
