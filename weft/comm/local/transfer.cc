#include <algorithm>
#include <cstring>

#include "weft/base/error.h"
#include "weft/comm/local/communicator.h"
#include "weft/comm/local/waiting.h"

namespace weft {

void LocalCommunicator::leave_by_failure(const char* message) {
  state_->fail(self(), message);  // does nothing when the run has already ended, which is why most come here
  // Copies do not wait for anything, so this ends; the bound is for a machine that is out of breath.
  const bool alone = group_->signal.wait_until(now_ns() + 60'000'000'000, [&] { return group_->copying.load() == 0; });
  WEFT_CHECK(alone, "group '{}': a peer still reads this rank's buffers a minute after the run ended", name());
}

void LocalCommunicator::do_transfer(Stream& stream, std::span<const Transfer> transfers) {
  if (parcel_capacity_ < transfers.size()) {
    parcel_capacity_ = transfers.size();
    parcels_ = std::make_unique<Parcel[]>(parcel_capacity_);
  }
  std::size_t posted = 0;
  std::int64_t bytes_out = 0, bytes_in = 0;
  Nanoseconds through = 0;
  try {
    state_->throw_if_ended();
    for (; posted < transfers.size(); ++posted) {
      const Transfer& each = transfers[posted];
      if (each.direction != Transfer::Direction::send) continue;
      Parcel& parcel = parcels_[posted];
      parcel.data = each.data.as<const std::byte>();
      parcel.dtype = each.data.dtype;
      parcel.count = each.data.given() ? each.data.shape.elements() : 0;
      parcel.posted = now_ns();
      if (device_) {
        if (!parcel.sent) parcel.sent = device_->make_event();
        parcel.sent->record(stream);
      }
      parcel.state.store(Parcel::State::waiting);
      bytes_out += parcel.count * static_cast<std::int64_t>(size_of(parcel.dtype));
      group_->box(rank(), each.peer).put(parcel);
    }
    group_->signal.notify();
    take_transfers(stream, transfers, through, bytes_in);
    for (std::size_t i = 0; i < transfers.size(); ++i) {
      if (transfers[i].direction != Transfer::Direction::send) continue;
      wait([&] { return parcels_[i].state.load() >= Parcel::State::delivered; },
           [&] { return std::vector<RankId>{world_rank(transfers[i].peer)}; });
      if (parcels_[i].state.load() == Parcel::State::refused) state_->throw_if_ended();
      through = std::max(through, parcels_[i].through);
      if (parcels_[i].read) parcels_[i].read->wait_on(stream);
    }
  } catch (const std::exception& error) {
    leave_by_failure(error.what());
    for (std::size_t i = 0; i < posted; ++i)
      if (transfers[i].direction == Transfer::Direction::send)
        group_->box(rank(), transfers[i].peer).withdraw(parcels_[i]);
    throw;
  }
  if (link_ == nullptr || transfers.empty()) return;
  link_->complete(through, state_->ended());
  state_->throw_if_ended();
}

void LocalCommunicator::take_transfers(Stream& stream, std::span<const Transfer> transfers, Nanoseconds& through,
                                       std::int64_t& bytes_in) {
  const Nanoseconds arrival = now_ns();
  for (const Transfer& each : transfers) {
    if (each.direction != Transfer::Direction::receive) continue;
    LocalGroup::Box& box = group_->box(each.peer, rank());
    wait([&] { return !box.empty(); }, [&] { return std::vector<RankId>{world_rank(each.peer)}; });
    const std::int64_t count = each.data.given() ? each.data.shape.elements() : 0;
    const Reading reading(*this);
    Parcel* parcel = box.take();
    if (parcel == nullptr) {  // its sender has left
      state_->throw_if_ended();
      WEFT_CHECK(false, "group '{}': a parcel vanished", name());
    }
    if (parcel->count != count || parcel->dtype != each.data.dtype) {
      const std::string why =
          parcel->count != count
              ? count_mismatch(each.peer, parcel->count, rank(), count)
              : fmt::format("{}: {} sends {} to {}, which expects {}", call_text(), member_text(each.peer),
                            name_of(parcel->dtype), member_text(rank()), name_of(each.data.dtype));
      state_->fail(self(), why);  // before the sender learns of it, so that it finds the reason
      parcel->state.store(Parcel::State::refused);
      group_->signal.notify();
      throw RunError(why);
    }
    const std::int64_t bytes = count * static_cast<std::int64_t>(size_of(parcel->dtype));
    if (device_) parcel->sent->wait_on(stream);
    copy_bytes(stream, each.data.as<std::byte>(), parcel->data, bytes);
    if (device_) {
      parcel->read = device_->make_event();  // not one of ours that we record again: the sender may be late to look
      parcel->read->record(stream);
    }
    bytes_in += bytes;
    if (link_ != nullptr) {
      const Nanoseconds start = std::max(parcel->posted, arrival);
      const Nanoseconds out = state_->link(world_rank(each.peer))->reserve(start, bytes, 0).out;
      parcel->through = std::max(out, link_->reserve(start, 0, bytes).in);
      through = std::max(through, parcel->through);
    }
    parcel->state.store(Parcel::State::delivered);
    group_->signal.notify();
  }
}

}  // namespace weft
