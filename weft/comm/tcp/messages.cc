#include "weft/comm/tcp/messages.h"

#include <algorithm>

namespace weft {

TcpMessages::TcpMessages(std::shared_ptr<TcpControl> control, std::uint64_t group, std::vector<int> members)
    : control_(std::move(control)), group_(group), members_(std::move(members)) {
  control_->engine().add(batch_);
}

TcpMessages::~TcpMessages() {
  abandon();
  control_->engine().remove(batch_);
}

void TcpMessages::post(const Posted& message) {
  if (used_ == posted_.size()) posted_.push_back(std::make_unique<Posted>());
  Posted& place = *posted_[used_++];
  place = message;
  place.batch = &batch_;
  place.group = group_;
  place.rank = members_[static_cast<std::size_t>(message.peer)];
  if (used_ == 1) batch_.mismatch.reset();
  control_->engine().post(place);
}

void TcpMessages::send(int peer, int tag, const std::byte* data, std::int64_t bytes) {
  Posted message;
  message.peer = peer;
  message.tag = static_cast<std::uint32_t>(tag);
  message.data = const_cast<std::byte*>(data);
  message.bytes = bytes;
  post(message);
}

void TcpMessages::receive(int peer, int tag, std::byte* data, std::int64_t bytes, std::int64_t width) {
  Posted message;
  message.receive = true;
  message.peer = peer;
  message.tag = static_cast<std::uint32_t>(tag);
  message.data = data;
  message.bytes = bytes;
  message.width = width;
  post(message);
}

Messages::Outcome TcpMessages::wait(double seconds) {
  TcpEngine& engine = control_->engine();
  engine.wait(batch_, seconds, control_->ended());
  const std::lock_guard lock(engine.mutex());
  if (batch_.mismatch) return Outcome::done;
  if (batch_.open > 0) return control_->ended().load() ? Outcome::ended : Outcome::late;
  used_ = 0;
  return Outcome::done;
}

std::vector<int> TcpMessages::pending_peers() const {
  const std::lock_guard lock(control_->engine().mutex());
  std::vector<int> peers;
  for (std::size_t i = 0; i < used_; ++i)
    if (!posted_[i]->done && std::ranges::find(peers, posted_[i]->peer) == peers.end())
      peers.push_back(posted_[i]->peer);
  std::ranges::sort(peers);
  return peers;
}

void TcpMessages::abandon() {
  for (std::size_t i = 0; i < used_; ++i) control_->engine().abandon(*posted_[i]);
  used_ = 0;
  const std::lock_guard lock(control_->engine().mutex());
  batch_.open = 0;
}

}  // namespace weft
