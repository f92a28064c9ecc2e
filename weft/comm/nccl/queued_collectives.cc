#include "weft/comm/nccl/queued_collectives.h"

#include "weft/base/error.h"

namespace weft::nccl {

void QueuedCollectives::begin(Stream& stream, Operation operation, std::uint64_t call,
                              std::span<const RankId> waits_for) {
  Entry entry;
  {
    const std::lock_guard lock(mutex_);
    if (!done_.empty()) {
      entry = std::move(done_.back());
      done_.pop_back();
    }
  }
  if (!entry.before) {
    entry.before = device_.make_event();
    entry.after = device_.make_event();
  }
  entry.operation = operation;
  entry.call = call;
  entry.waits_for.assign(waits_for.begin(), waits_for.end());
  entry.queued = false;
  entry.seen.reset();
  entry.before->record(stream);
  const std::lock_guard lock(mutex_);
  queued_.push_back(std::move(entry));
}

void QueuedCollectives::end(Stream& stream) {
  std::unique_lock lock(mutex_);
  Entry& last = queued_.back();  // stays in place until it is marked as queued
  lock.unlock();
  last.after->record(stream);
  lock.lock();
  last.queued = true;
}

void QueuedCollectives::remove_done() {
  while (!queued_.empty() && queued_.front().queued && queued_.front().after->done()) {
    done_.push_back(std::move(queued_.front()));
    queued_.pop_front();
  }
}

std::optional<QueuedCollectives::Current> QueuedCollectives::current() {
  const std::lock_guard lock(mutex_);
  remove_done();
  if (queued_.empty() || !queued_.front().before->done()) return std::nullopt;
  Entry& first = queued_.front();
  const Clock::time_point now = Clock::now();
  if (!first.seen) first.seen = now;
  const std::string what =
      first.operation == Operation::none
          ? fmt::format("connecting group '{}'", group_)
          : fmt::format("{} (call {}) of group '{}'", name_of(first.operation), first.call, group_);
  return Current{what, first.waits_for, std::chrono::duration<double>(now - *first.seen).count()};
}

bool QueuedCollectives::idle() {
  const std::lock_guard lock(mutex_);
  remove_done();
  return queued_.empty();
}

}  // namespace weft::nccl
