#include "weft/comm/nccl/flights.h"

#include "weft/base/error.h"

namespace weft::nccl {

void Flights::begin(Stream& stream, Operation operation, std::uint64_t call, std::span<const RankId> waits_for) {
  Flight flight;
  {
    const std::lock_guard lock(mutex_);
    if (!landed_.empty()) {
      flight = std::move(landed_.back());
      landed_.pop_back();
    }
  }
  if (!flight.before) {
    flight.before = device_.make_event();
    flight.behind = device_.make_event();
  }
  flight.operation = operation;
  flight.call = call;
  flight.waits_for.assign(waits_for.begin(), waits_for.end());
  flight.queued = false;
  flight.seen.reset();
  flight.before->record(stream);
  const std::lock_guard lock(mutex_);
  flights_.push_back(std::move(flight));
}

void Flights::end(Stream& stream) {
  std::unique_lock lock(mutex_);
  Flight& last = flights_.back();  // stays where it is until it is queued
  lock.unlock();
  last.behind->record(stream);
  lock.lock();
  last.queued = true;
}

void Flights::land() {
  while (!flights_.empty() && flights_.front().queued && flights_.front().behind->done()) {
    landed_.push_back(std::move(flights_.front()));
    flights_.pop_front();
  }
}

std::optional<Flights::Current> Flights::current() {
  const std::lock_guard lock(mutex_);
  land();
  if (flights_.empty() || !flights_.front().before->done()) return std::nullopt;
  Flight& first = flights_.front();
  const Clock::time_point now = Clock::now();
  if (!first.seen) first.seen = now;
  const std::string what =
      first.operation == Operation::none
          ? fmt::format("the connecting of group '{}'", group_)
          : fmt::format("{} (call {}) of group '{}'", name_of(first.operation), first.call, group_);
  return Current{what, first.waits_for, std::chrono::duration<double>(now - *first.seen).count()};
}

bool Flights::idle() {
  const std::lock_guard lock(mutex_);
  land();
  return flights_.empty();
}

}  // namespace weft::nccl
