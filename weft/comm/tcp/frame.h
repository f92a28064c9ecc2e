// The protocol of a connection after the handshake: a frame's head, followed by its bytes. Small messages are sent
// whole. Large ones are offered, and sent in parts directly into the receiver's memory once it has posted the receive.
// So unexpected data is small, parts of several messages take turns, and control messages never wait for a long
// message.
#pragma once

#include <cstddef>
#include <cstdint>

namespace weft {

enum class FrameKind : std::uint32_t {
  control = 1,  // tag: Control::Message; bytes of text follow
  whole,        // a message: group, tag, its bytes follow
  offer,        // offers a message: group, tag, size; nothing follows
  accept,       // accepts the offer `offer`; nothing follows
  part,         // of the message `offer`, in order; bytes follow
};

struct Frame {
  FrameKind kind = FrameKind::control;
  std::uint32_t tag = 0;
  std::uint64_t group = 0;
  std::uint64_t offer = 0;  // numbered by the sender, on its side of the connection
  std::uint64_t size = 0;   // bytes of the whole message
  std::uint64_t bytes = 0;  // that follow the head
};

inline constexpr std::size_t largest_whole = 32 * 1024;  // bytes
inline constexpr std::size_t largest_part = 256 * 1024;  // other messages get a turn between two parts
inline constexpr std::size_t largest_control = 64 * 1024;

}  // namespace weft
