// What goes out over one connection, in which order, and how far it got. Any thread may add and write.
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
  // done: called for every message that is through, with this object's mutex held.
  // want_write: likewise, whether the socket is to be watched for room.
  Outgoing(int fd, std::function<void(Posted&)> done, std::function<void(bool)> want_write);

  void send(Posted& message);
  void send_word(std::uint32_t word, std::shared_ptr<const std::string> text);
  void send_accept(std::uint64_t offer);
  void accepted(std::uint64_t offer);  // by the peer
  // The message's memory is not read any more when this returns.
  void abandon(Posted& message);
  // Writes what the socket takes.
  void write();
  // Nothing can be sent any more.
  void close();
  bool idle();  // all words are written, or never will be

 private:
  struct Entry {
    Frame frame;
    Posted* message = nullptr;                // of a message's frame
    std::shared_ptr<const std::string> text;  // of a word
  };

  bool next();        // takes the next frame to write; false when there is none
  bool write_some();  // false when the socket takes no more
  void finish_frame();
  void write_locked();

  int fd_;
  std::function<void(Posted&)> done_;
  std::function<void(bool)> want_write_;
  std::mutex mutex_;
  std::deque<Entry> words_;                            // go first, accepts too
  std::deque<Entry> messages_;                         // whole ones and offers
  std::unordered_map<std::uint64_t, Posted*> offers_;  // not accepted yet
  std::deque<Posted*> parts_;                          // accepted: one part each, in turns
  std::uint64_t last_offer_ = 0;
  bool closed_ = false;
  bool watched_ = false;

  bool writing_ = false;
  Entry current_;
  const std::byte* payload_ = nullptr;  // null: zeros, in the place of memory that was taken back
  std::size_t written_ = 0;             // of head and payload
};

}  // namespace weft
