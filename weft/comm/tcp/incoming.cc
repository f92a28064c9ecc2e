#include "weft/comm/tcp/incoming.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>

#include <sys/uio.h>

#include "weft/base/error.h"

namespace weft {

namespace {

constexpr std::size_t most_at_once = 1024 * 1024;  // then other connections get a turn
constexpr std::size_t after_a_part = 4096;         // read along with a part: usually the next frame's head

}  // namespace

Incoming::Incoming(int fd, std::mutex& mutex, Callbacks callbacks)
    : fd_(fd), mutex_(mutex), callbacks_(std::move(callbacks)) {}

void Incoming::complete(Posted& message) {
  message.done = true;
  if (--message.batch->open == 0 || message.batch->mismatch) message.batch->changed.notify_all();
}

bool Incoming::fits(Posted& message, std::uint64_t sent) {
  if (static_cast<std::uint64_t>(message.bytes) == sent) return true;
  if (!message.batch->mismatch)
    message.batch->mismatch = Messages::Mismatch{message.peer, static_cast<std::int64_t>(sent) / message.width,
                                                 message.bytes / message.width};
  complete(message);
  return false;
}

void Incoming::match(Posted& message, std::uint64_t offer) {
  message.matched = true;
  message.offer = offer;
  matched_.emplace(offer, &message);
}

void Incoming::moved(Posted& message, std::size_t bytes) {
  message.moved += static_cast<std::int64_t>(bytes);
  if (message.moved < message.bytes) return;
  matched_.erase(message.offer);
  complete(message);
}

void Incoming::post(Posted& message) {
  std::uint64_t accept = 0;
  {
    const std::lock_guard lock(mutex_);
    const auto found = channels_.try_emplace(Key{message.group, message.tag}).first;
    Channel& channel = found->second;
    if (channel.arrived.empty()) {
      channel.posted.push_back(&message);
      return;
    }
    const Arrival arrival = std::move(channel.arrived.front());
    channel.arrived.pop_front();
    if (channel.arrived.empty()) channels_.erase(found);
    if (!fits(message, arrival.frame.size)) return;
    if (arrival.frame.kind == FrameKind::whole) {
      if (!arrival.data.empty()) std::memcpy(message.data, arrival.data.data(), arrival.data.size());
      complete(message);
      return;
    }
    accept = arrival.frame.offer;
    match(message, accept);
  }
  callbacks_.send_accept(accept);
}

void Incoming::abandon(Posted& message) {
  std::unique_lock lock(mutex_);
  message.batch->changed.wait(lock, [&] { return !message.busy; });
  if (message.done) return;
  if (message.matched) {
    matched_[message.offer] = nullptr;
    return;
  }
  const auto found = channels_.find(Key{message.group, message.tag});
  if (found == channels_.end()) return;
  std::erase(found->second.posted, &message);
  if (found->second.posted.empty() && found->second.arrived.empty()) channels_.erase(found);
}

Posted* Incoming::first_posted(const Key& key) {
  const auto found = channels_.find(key);
  if (found == channels_.end() || found->second.posted.empty()) return nullptr;
  Posted* const message = found->second.posted.front();
  found->second.posted.pop_front();
  if (found->second.posted.empty()) channels_.erase(found);
  return message;
}

void Incoming::take_whole(const std::byte* data) {
  const std::lock_guard lock(mutex_);
  const Key key{frame_.group, frame_.tag};
  const auto bytes = static_cast<std::size_t>(frame_.bytes);
  if (Posted* const message = first_posted(key)) {
    if (!fits(*message, frame_.size)) return;
    if (bytes > 0) std::memcpy(message->data, data, bytes);
    complete(*message);
  } else {
    channels_[key].arrived.push_back({frame_, std::vector<std::byte>(data, data + bytes)});
  }
}

void Incoming::take_offer() {
  {
    const std::lock_guard lock(mutex_);
    const Key key{frame_.group, frame_.tag};
    Posted* const message = first_posted(key);
    if (message == nullptr) {
      channels_[key].arrived.push_back({frame_, {}});
      return;
    }
    if (!fits(*message, frame_.size)) return;
    match(*message, frame_.offer);
  }
  callbacks_.send_accept(frame_.offer);
}

void Incoming::take_part(const std::byte* data, std::size_t bytes) {
  const std::lock_guard lock(mutex_);
  const auto found = matched_.find(frame_.offer);
  if (found == matched_.end() || found->second == nullptr) return;
  Posted& message = *found->second;
  std::memcpy(message.data + message.moved, data, bytes);
  moved(message, bytes);
}

void Incoming::begin_frame() {
  const bool carries =
      frame_.kind == FrameKind::control || frame_.kind == FrameKind::whole || frame_.kind == FrameKind::part;
  const std::size_t most = frame_.kind == FrameKind::part    ? largest_part
                           : frame_.kind == FrameKind::whole ? largest_whole
                                                             : largest_control;
  bool sound = frame_.kind >= FrameKind::control && frame_.kind <= FrameKind::part &&
               (carries ? frame_.bytes <= most : frame_.bytes == 0) &&
               (frame_.kind != FrameKind::whole || frame_.size == frame_.bytes);
  if (frame_.kind == FrameKind::part && sound) {
    const std::lock_guard lock(mutex_);
    const auto found = matched_.find(frame_.offer);
    const Posted* const message = found == matched_.end() ? nullptr : found->second;
    sound = frame_.bytes > 0 && found != matched_.end() &&
            (message == nullptr || static_cast<std::int64_t>(frame_.bytes) <= message->bytes - message->moved);
  }
  if (!sound) throw RunError("its connection carries data that is not Weft's protocol");
  left_ = static_cast<std::size_t>(frame_.bytes);
  payload_.clear();
}

void Incoming::end_frame(const std::byte* data) {
  switch (frame_.kind) {
    case FrameKind::control:
      callbacks_.control(frame_.tag,
                         std::string(reinterpret_cast<const char*>(data), static_cast<std::size_t>(frame_.bytes)));
      break;
    case FrameKind::whole:
      take_whole(data);
      break;
    case FrameKind::offer:
      take_offer();
      break;
    case FrameKind::accept:
      callbacks_.accepted(frame_.offer);
      break;
    case FrameKind::part:
      break;
  }
}

void Incoming::parse(const std::byte* data, std::size_t bytes) {
  while (bytes > 0) {
    if (head_ < sizeof(Frame)) {
      const std::size_t take = std::min(bytes, sizeof(Frame) - head_);
      std::memcpy(reinterpret_cast<std::byte*>(&frame_) + head_, data, take);
      head_ += take;
      data += take;
      bytes -= take;
      if (head_ < sizeof(Frame)) return;
      begin_frame();
    } else {
      const std::size_t take = std::min(bytes, left_);
      if (frame_.kind == FrameKind::part) {
        take_part(data, take);
      } else if (take == frame_.bytes) {  // all in one piece: no copy
        left_ = 0;
        head_ = 0;
        end_frame(data);
        data += take;
        bytes -= take;
        continue;
      } else {
        payload_.insert(payload_.end(), data, data + take);
      }
      left_ -= take;
      data += take;
      bytes -= take;
    }
    if (head_ == sizeof(Frame) && left_ == 0) {
      head_ = 0;
      end_frame(payload_.data());
    }
  }
}

std::string Incoming::read(std::vector<std::byte>& staging) {
  for (std::size_t all = 0; all < most_at_once;) {
    std::array<iovec, 2> places{};
    std::size_t count = 0, direct = 0;
    Posted* target = nullptr;
    if (left_ > 0 && frame_.kind == FrameKind::part) {
      const std::lock_guard lock(mutex_);
      const auto found = matched_.find(frame_.offer);
      target = found == matched_.end() ? nullptr : found->second;
      if (target != nullptr) {
        target->busy = true;
        direct = left_;
        places[count++] = {target->data + target->moved, direct};
      }
    }
    places[count++] = {staging.data(), target != nullptr ? after_a_part : staging.size()};
    const ssize_t got = readv(fd_, places.data(), static_cast<int>(count));
    const int error = errno;
    const std::size_t bytes = got > 0 ? static_cast<std::size_t>(got) : 0, into = std::min(bytes, direct);
    if (target != nullptr) {
      const std::lock_guard lock(mutex_);
      target->busy = false;
      target->batch->changed.notify_all();
      moved(*target, into);
    }
    if (got == 0) return "its connection closed";
    if (got < 0 && error == EAGAIN) return "";
    if (got < 0 && error == EINTR) continue;
    if (got < 0 && error == ECONNRESET) return "its connection closed";
    if (got < 0) return std::strerror(error);
    if (into > 0) {
      left_ -= into;
      if (left_ == 0) head_ = 0;
    }
    try {
      parse(staging.data(), bytes - into);
    } catch (const RunError& broken) {
      return broken.what();
    }
    all += bytes;
    if (bytes < direct + places[count - 1].iov_len) return "";  // there is no more
  }
  return "";
}

}  // namespace weft
