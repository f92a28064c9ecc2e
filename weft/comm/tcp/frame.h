// What goes over a connection once it stands: a frame's head, and so many bytes behind it. Small messages go whole;
// large ones are offered, and go in parts when the receiver has a place for them, straight into it. So what comes
// unasked is small, parts of several messages take turns, and words about the run never wait behind a long message.
#pragma once

#include <cstddef>
#include <cstdint>

namespace weft {

enum class FrameKind : std::uint32_t {
  word = 1,  // tag: Control::Word; bytes of text follow
  whole,     // a message: group, tag, its bytes follow
  offer,     // of a message: group, tag, size; nothing follows
  accept,    // of the offer `offer`; nothing follows
  part,      // of the message `offer`, in order; bytes follow
};

struct Frame {
  FrameKind kind = FrameKind::word;
  std::uint32_t tag = 0;
  std::uint64_t group = 0;
  std::uint64_t offer = 0;  // numbered by the sender, on its side of the connection
  std::uint64_t size = 0;   // bytes of the whole message
  std::uint64_t bytes = 0;  // that follow
};

inline constexpr std::size_t largest_whole = 32 * 1024;  // bytes
inline constexpr std::size_t largest_part = 256 * 1024;  // between two parts others get their turn
inline constexpr std::size_t largest_word = 64 * 1024;

}  // namespace weft
