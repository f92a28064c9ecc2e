#include "weft/comm/tcp/outgoing.h"

#include <algorithm>
#include <array>
#include <cerrno>

#include <sys/socket.h>
#include <sys/uio.h>

namespace weft {

namespace {

constexpr std::size_t most_at_once = 4 * largest_part;  // then others get a turn
constexpr std::array<std::byte, 16 * 1024> zeros{};

}  // namespace

Outgoing::Outgoing(int fd, std::function<void(Posted&)> done, std::function<void(bool)> want_write)
    : fd_(fd), done_(std::move(done)), want_write_(std::move(want_write)) {}

void Outgoing::send(Posted& message) {
  const std::lock_guard lock(mutex_);
  const auto bytes = static_cast<std::uint64_t>(message.bytes);
  Frame frame{FrameKind::whole, message.tag, message.group, 0, bytes, bytes};
  if (bytes > largest_whole) {
    message.offer = ++last_offer_;
    offers_.emplace(message.offer, &message);
    frame.kind = FrameKind::offer;
    frame.offer = message.offer;
    frame.bytes = 0;
  }
  messages_.push_back({frame, &message, nullptr});
  write_locked();
}

void Outgoing::send_control(std::uint32_t kind, std::shared_ptr<const std::string> text) {
  const std::lock_guard lock(mutex_);
  control_.push_back({{FrameKind::control, kind, 0, 0, text->size(), text->size()}, nullptr, text});
  write_locked();
}

void Outgoing::send_accept(std::uint64_t offer) {
  const std::lock_guard lock(mutex_);
  control_.push_back({{FrameKind::accept, 0, 0, offer, 0, 0}, nullptr, nullptr});
  write_locked();
}

void Outgoing::accepted(std::uint64_t offer) {
  const std::lock_guard lock(mutex_);
  const auto found = offers_.find(offer);
  if (found == offers_.end()) return;  // abandoned
  parts_.push_back(found->second);
  offers_.erase(found);
  write_locked();
}

void Outgoing::abandon(Posted& message) {
  const std::lock_guard lock(mutex_);
  std::erase_if(messages_, [&](const Entry& entry) { return entry.message == &message; });
  std::erase(parts_, &message);
  if (message.offer != 0) offers_.erase(message.offer);
  if (writing_ && current_.message == &message) {  // its length was sent already: the rest is filled with zeros
    current_.message = nullptr;
    payload_ = nullptr;
  }
}

void Outgoing::write() {
  const std::lock_guard lock(mutex_);
  write_locked();
}

void Outgoing::close() {
  const std::lock_guard lock(mutex_);
  closed_ = true;
  control_.clear();
  messages_.clear();
  offers_.clear();
  parts_.clear();
  writing_ = false;
}

bool Outgoing::idle() {
  const std::lock_guard lock(mutex_);
  return closed_ || (control_.empty() && !writing_);
}

bool Outgoing::next() {
  written_ = 0;
  payload_ = nullptr;
  if (!control_.empty()) {
    current_ = std::move(control_.front());
    control_.pop_front();
    if (current_.text) payload_ = reinterpret_cast<const std::byte*>(current_.text->data());
  } else if (!messages_.empty()) {
    current_ = std::move(messages_.front());
    messages_.pop_front();
    payload_ = current_.message->data;
  } else if (!parts_.empty()) {
    Posted& message = *parts_.front();
    parts_.pop_front();
    const auto left = static_cast<std::uint64_t>(message.bytes - message.moved);
    current_ = {{FrameKind::part, 0, message.group, message.offer, static_cast<std::uint64_t>(message.bytes),
                 std::min<std::uint64_t>(left, largest_part)},
                &message,
                nullptr};
    payload_ = message.data + message.moved;
  } else {
    return false;
  }
  return true;
}

void Outgoing::finish_frame() {
  writing_ = false;
  Posted* const message = current_.message;
  const Frame frame = current_.frame;
  current_ = {};
  if (message == nullptr || frame.kind == FrameKind::offer) return;
  if (frame.kind == FrameKind::part) {
    message->moved += static_cast<std::int64_t>(frame.bytes);
    if (message->moved < message->bytes) {
      parts_.push_back(message);
      return;
    }
  }
  done_(*message);
}

bool Outgoing::write_some() {
  const std::size_t bytes = static_cast<std::size_t>(current_.frame.bytes), all = sizeof(Frame) + bytes;
  while (written_ < all) {
    std::array<iovec, 2> parts{};
    std::size_t count = 0;
    if (written_ < sizeof(Frame))
      parts[count++] = {reinterpret_cast<char*>(&current_.frame) + written_, sizeof(Frame) - written_};
    const std::size_t at = std::max(written_, sizeof(Frame)) - sizeof(Frame);
    if (at < bytes && payload_ != nullptr) parts[count++] = {const_cast<std::byte*>(payload_) + at, bytes - at};
    if (at < bytes && payload_ == nullptr)
      parts[count++] = {const_cast<std::byte*>(zeros.data()), std::min(bytes - at, zeros.size())};
    msghdr header{};
    header.msg_iov = parts.data();
    header.msg_iovlen = count;
    const ssize_t put = sendmsg(fd_, &header, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (put > 0) {
      written_ += static_cast<std::size_t>(put);
    } else if (errno == EAGAIN) {
      return false;
    } else if (errno != EINTR) {  // the reader finds and reports the reason
      closed_ = true;
      shutdown(fd_, SHUT_RDWR);
      return false;
    }
  }
  return true;
}

void Outgoing::write_locked() {
  std::size_t wrote = 0;
  bool more = false;
  while (!closed_) {
    if (!writing_ && !next()) break;
    writing_ = true;
    more = true;
    if (wrote >= most_at_once || !write_some()) break;
    wrote += sizeof(Frame) + static_cast<std::size_t>(current_.frame.bytes);
    finish_frame();
    more = false;
  }
  more = more && !closed_;
  if (more != watched_) {
    watched_ = more;
    want_write_(more);
  }
}

}  // namespace weft
