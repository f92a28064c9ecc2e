#include <algorithm>
#include <cstring>

#include "weft/base/error.h"
#include "weft/comm/local/communicator.h"
#include "weft/comm/local/waiting.h"

namespace weft {

void LocalCommunicator::do_transfer(Stream& stream, std::span<const Transfer> transfers) {
  if (message_capacity_ < transfers.size()) {
    message_capacity_ = transfers.size();
    messages_ = std::make_unique<LocalMessage[]>(message_capacity_);
  }
  std::size_t posted = 0;
  std::int64_t bytes_out = 0, bytes_in = 0;
  Nanoseconds done_at = 0;
  try {
    state_->throw_if_ended();
    for (; posted < transfers.size(); ++posted) {
      const Transfer& each = transfers[posted];
      if (each.direction != Transfer::Direction::send) continue;
      LocalMessage& message = messages_[posted];
      message.data = each.data.as<const std::byte>();
      message.dtype = each.data.dtype;
      message.count = each.data.given() ? each.data.shape.elements() : 0;
      message.posted = now_ns();
      if (device_) {
        if (!message.sent) message.sent = device_->make_event();
        message.sent->record(stream);
      }
      message.state.store(LocalMessage::State::waiting);
      bytes_out += message.count * static_cast<std::int64_t>(size_of(message.dtype));
      group_->mailbox(rank(), each.peer).put(message);
    }
    group_->signal.notify();
    take_transfers(stream, transfers, done_at, bytes_in);
    for (std::size_t i = 0; i < transfers.size(); ++i) {
      if (transfers[i].direction != Transfer::Direction::send) continue;
      wait([&] { return messages_[i].state.load() >= LocalMessage::State::delivered; },
           [&] { return std::vector<RankId>{world_rank(transfers[i].peer)}; });
      if (messages_[i].state.load() == LocalMessage::State::refused) state_->throw_if_ended();
      done_at = std::max(done_at, messages_[i].done_at);
      if (messages_[i].read) messages_[i].read->wait_on(stream);
    }
  } catch (const std::exception& error) {
    leave_by_failure(error.what());
    for (std::size_t i = 0; i < posted; ++i)
      if (transfers[i].direction == Transfer::Direction::send)
        group_->mailbox(rank(), transfers[i].peer).withdraw(messages_[i]);
    throw;
  }
  if (link_ == nullptr || transfers.empty()) return;
  link_->complete(done_at, state_->ended());
  state_->throw_if_ended();
}

void LocalCommunicator::take_transfers(Stream& stream, std::span<const Transfer> transfers, Nanoseconds& done_at,
                                       std::int64_t& bytes_in) {
  const Nanoseconds arrival = now_ns();
  for (const Transfer& each : transfers) {
    if (each.direction != Transfer::Direction::receive) continue;
    LocalGroup::Mailbox& mailbox = group_->mailbox(each.peer, rank());
    wait([&] { return !mailbox.empty(); }, [&] { return std::vector<RankId>{world_rank(each.peer)}; });
    const std::int64_t count = each.data.given() ? each.data.shape.elements() : 0;
    const Reading reading(*this);
    LocalMessage* message = mailbox.take();
    if (message == nullptr) {  // its sender has left
      state_->throw_if_ended();
      WEFT_CHECK(false, "group '{}': a message vanished", name());
    }
    if (message->count != count || message->dtype != each.data.dtype) {
      const std::string why =
          message->count != count
              ? count_mismatch(each.peer, message->count, rank(), count)
              : fmt::format("{}: {} sends {} to {}, which expects {}", call_text(), member_text(each.peer),
                            name_of(message->dtype), member_text(rank()), name_of(each.data.dtype));
      state_->fail(self(), why);  // before the sender wakes, so that it finds the reason
      message->state.store(LocalMessage::State::refused);
      group_->signal.notify();
      throw RunError(why);
    }
    const std::int64_t bytes = count * static_cast<std::int64_t>(size_of(message->dtype));
    if (device_) message->sent->wait_on(stream);
    copy_bytes(stream, each.data.as<std::byte>(), message->data, bytes);
    if (device_) {
      message->read = device_->make_event();  // a new one each time: the sender may look at it late
      message->read->record(stream);
    }
    bytes_in += bytes;
    if (link_ != nullptr) {
      const Nanoseconds start = std::max(message->posted, arrival);
      const Nanoseconds out = state_->link(world_rank(each.peer))->reserve(start, bytes, 0).out;
      message->done_at = std::max(out, link_->reserve(start, 0, bytes).in);
      done_at = std::max(done_at, message->done_at);
    }
    message->state.store(LocalMessage::State::delivered);
    group_->signal.notify();
  }
}

}  // namespace weft
