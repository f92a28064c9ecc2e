#include "weft/comm/local/group.h"

namespace weft {

void LocalGroup::Mailbox::put(LocalMessage& message) {
  const std::lock_guard lock(mutex_);
  message.next = nullptr;
  (last_ != nullptr ? last_->next : first_) = &message;
  last_ = &message;
  count_.fetch_add(1);
}

LocalMessage* LocalGroup::Mailbox::take() {
  const std::lock_guard lock(mutex_);
  LocalMessage* message = first_;
  if (message == nullptr) return nullptr;
  first_ = message->next;
  if (first_ == nullptr) last_ = nullptr;
  count_.fetch_sub(1);
  message->state.store(LocalMessage::State::taken);
  return message;
}

void LocalGroup::Mailbox::withdraw(LocalMessage& message) {
  const std::lock_guard lock(mutex_);
  LocalMessage* before = nullptr;
  for (LocalMessage* at = first_; at != nullptr; before = at, at = at->next) {
    if (at != &message) continue;
    (before != nullptr ? before->next : first_) = at->next;
    if (last_ == at) last_ = before;
    count_.fetch_sub(1);
    return;
  }
}

}  // namespace weft
