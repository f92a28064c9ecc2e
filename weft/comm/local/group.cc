#include "weft/comm/local/group.h"

namespace weft {

void LocalGroup::Box::put(Parcel& parcel) {
  const std::lock_guard lock(mutex_);
  parcel.next = nullptr;
  (last_ != nullptr ? last_->next : first_) = &parcel;
  last_ = &parcel;
  count_.fetch_add(1);
}

Parcel* LocalGroup::Box::take() {
  const std::lock_guard lock(mutex_);
  Parcel* parcel = first_;
  if (parcel == nullptr) return nullptr;
  first_ = parcel->next;
  if (first_ == nullptr) last_ = nullptr;
  count_.fetch_sub(1);
  parcel->state.store(Parcel::State::taken);
  return parcel;
}

void LocalGroup::Box::withdraw(Parcel& parcel) {
  const std::lock_guard lock(mutex_);
  Parcel* before = nullptr;
  for (Parcel* at = first_; at != nullptr; before = at, at = at->next) {
    if (at != &parcel) continue;
    (before != nullptr ? before->next : first_) = at->next;
    if (last_ == at) last_ = before;
    count_.fetch_sub(1);
    return;
  }
}

}  // namespace weft
