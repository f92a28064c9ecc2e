#include "weft/comm/local/communicator.h"

#include <algorithm>
#include <cstring>

#include "weft/base/error.h"
#include "weft/comm/counts.h"
#include "weft/comm/local/waiting.h"
#include "weft/device/reduction.h"

namespace weft {

namespace {

std::int64_t sum_of(Counts counts) { return sum_before(counts, static_cast<int>(counts.size())); }

}  // namespace

LocalCommunicator::LocalCommunicator(std::shared_ptr<LocalState> state, std::shared_ptr<LocalGroup> group,
                                     std::span<const RankId> members, int rank, const std::string& name, Device* device)
    : Communicator(members, rank, name),
      state_(std::move(state)),
      group_(std::move(group)),
      device_(device && device->asynchronous() ? device : nullptr),
      link_(device_ ? nullptr : state_->link(members[static_cast<std::size_t>(rank)])),
      inputs_(members.size()) {
  if (device_)
    for (const Point point : {&LocalGroup::Member::ready, &LocalGroup::Member::reduced, &LocalGroup::Member::done})
      group_->members[static_cast<std::size_t>(rank)].*point = device_->make_event();
  state_->activity(self()).add(this);
}

LocalCommunicator::~LocalCommunicator() { state_->activity(self()).remove(this); }

void LocalCommunicator::arrive_and_wait() {
  const auto members = static_cast<std::uint64_t>(size());
  ++barriers_;
  group_->members[static_cast<std::size_t>(rank())].barriers.store(barriers_);
  if (group_->arrivals.fetch_add(1) + 1 == barriers_ * members) {
    group_->signal.notify();
    return;
  }
  wait([&] { return group_->arrivals.load() >= barriers_ * members; },
       [&] {
         std::vector<RankId> missing;
         for (int peer = 0; peer < size(); ++peer)
           if (group_->members[static_cast<std::size_t>(peer)].barriers.load() < barriers_)
             missing.push_back(world_rank(peer));
         return missing;
       });
}

void LocalCommunicator::arrive_and_wait_at(Stream& stream, Point point) {
  if (device_) (group_->members[static_cast<std::size_t>(rank())].*point)->record(stream);
  arrive_and_wait();
  if (!device_) return;
  for (int peer = 0; peer < size(); ++peer)
    if (peer != rank()) (group_->members[static_cast<std::size_t>(peer)].*point)->wait_on(stream);
}

void LocalCommunicator::copy_bytes(Stream& stream, std::byte* to, const std::byte* from, std::int64_t bytes) {
  if (bytes == 0 || to == from) return;
  if (device_)
    device_->copy(stream, to, from, static_cast<std::size_t>(bytes));
  else
    std::memcpy(to, from, static_cast<std::size_t>(bytes));
}

void LocalCommunicator::reduce(Stream& stream, Reduction reduction, DType dtype, std::byte* out, std::int64_t count) {
  if (device_)
    device_->reduce(stream, reduction, dtype, out, inputs_, count);
  else
    reduce_in_rank_order(reduction, dtype, out, inputs_, count);
}

void LocalCommunicator::check_arguments() const {
  const CallArguments& mine = arguments(rank());
  for (int peer = 0; peer < size(); ++peer) {
    const CallArguments& theirs = arguments(peer);
    const auto differ = [&](std::string_view what, auto their_value, auto my_value) {
      throw RunError("{}: {} gives {} {}, {} gives {}", call_text(), member_text(peer), what, their_value,
                     member_text(rank()), my_value);
    };
    if (theirs.operation != mine.operation)
      throw RunError("{}: {} calls {} instead", call_text(), member_text(peer), name_of(theirs.operation));
    if (theirs.dtype != mine.dtype) differ("dtype", name_of(theirs.dtype), name_of(mine.dtype));
    if (theirs.root != mine.root) differ("root", theirs.root, mine.root);
    if (theirs.count != mine.count) differ("count", theirs.count, mine.count);
    if (theirs.reduction != mine.reduction) differ("reduction", name_of(theirs.reduction), name_of(mine.reduction));
    const auto me = static_cast<std::size_t>(rank()), they = static_cast<std::size_t>(peer);
    if (mine.operation == Operation::all_gather) {
      for (const std::size_t entry : {me, they})
        if (theirs.send_counts[entry] != mine.send_counts[entry])
          differ(fmt::format("the count of {} as", member_text(static_cast<int>(entry))), theirs.send_counts[entry],
                 mine.send_counts[entry]);
    } else if (mine.operation == Operation::all_to_all) {
      if (theirs.send_counts[me] != mine.receive_counts[they])
        throw RunError(count_mismatch(peer, theirs.send_counts[me], rank(), mine.receive_counts[they]));
      if (mine.send_counts[they] != theirs.receive_counts[me])
        throw RunError(count_mismatch(rank(), mine.send_counts[they], peer, theirs.receive_counts[me]));
    }
  }
}

void LocalCommunicator::leave_by_failure(const char* message) {
  state_->fail(self(), message);  // does nothing if the run has already ended
  // Copies wait for nothing, so this ends; the limit is for an overloaded machine.
  const bool alone = group_->signal.wait_until(now_ns() + 60'000'000'000, [&] { return group_->copying.load() == 0; });
  WEFT_CHECK(alone, "group '{}': a peer still reads this rank's buffers a minute after the run ended", name());
}

template <class Copy, class SendsHere>
void LocalCommunicator::collective(Stream& stream, const CallArguments& mine, std::int64_t bytes_out,
                                   std::int64_t bytes_in, const Copy& copy, const SendsHere& sends_here) {
  LocalGroup::Member& self_member = group_->members[static_cast<std::size_t>(rank())];
  self_member.arguments = mine;
  self_member.arguments.operation = operation();
  const std::size_t parity = ++collectives_ % 2;
  Nanoseconds done_at = 0;
  try {
    state_->throw_if_ended();
    const Nanoseconds arrival = now_ns();
    for (Nanoseconds latest = group_->latest_arrival.load();
         latest < arrival && !group_->latest_arrival.compare_exchange_weak(latest, arrival);) {
    }
    arrive_and_wait_at(stream, &LocalGroup::Member::ready);
    if (link_ != nullptr && size() > 1) {
      const Link::Times times = link_->reserve(group_->latest_arrival.load(), bytes_out, bytes_in);
      self_member.out_done_at[parity] = times.out;
      done_at = std::max(times.out, times.in);
    }
    {
      const Reading reading(*this);
      check_arguments();
      copy();
    }
    arrive_and_wait_at(stream, &LocalGroup::Member::done);
  } catch (const std::exception& error) {
    leave_by_failure(error.what());
    throw;
  }
  if (link_ == nullptr || size() == 1) return;
  for (int peer = 0; peer < size(); ++peer)
    if (sends_here(peer))
      done_at = std::max(done_at, group_->members[static_cast<std::size_t>(peer)].out_done_at[parity]);
  link_->complete(done_at, state_->ended());
  state_->throw_if_ended();
}

void LocalCommunicator::do_all_to_all(Stream& stream, DType dtype, const std::byte* send, Counts send_counts,
                                      std::byte* receive, Counts receive_counts) {
  const auto width = static_cast<std::int64_t>(size_of(dtype));
  const auto me = static_cast<std::size_t>(rank());
  CallArguments mine;
  mine.dtype = dtype;
  mine.send = send;
  mine.send_counts = send_counts;
  mine.receive_counts = receive_counts;
  const auto copy = [&] {
    for (int step = 0; step < size(); ++step) {  // every rank starts with a different peer
      const int peer = (rank() + step) % size();
      const CallArguments& theirs = arguments(peer);
      copy_bytes(stream, receive + sum_before(receive_counts, peer) * width,
                 theirs.send + sum_before(theirs.send_counts, rank()) * width, theirs.send_counts[me] * width);
    }
  };
  collective(stream, mine, (sum_of(send_counts) - send_counts[me]) * width,
             (sum_of(receive_counts) - receive_counts[me]) * width, copy,
             [&](int peer) { return receive_counts[static_cast<std::size_t>(peer)] > 0; });
}

void LocalCommunicator::do_all_gather(Stream& stream, DType dtype, const std::byte* send, std::byte* receive,
                                      Counts counts) {
  const auto width = static_cast<std::int64_t>(size_of(dtype));
  const auto count_of = [&](int peer) { return counts[static_cast<std::size_t>(peer)]; };
  CallArguments mine;
  mine.dtype = dtype;
  mine.send = send;
  mine.send_counts = counts;
  const auto copy = [&] {
    for (int step = 0; step < size(); ++step) {
      const int peer = (rank() + step) % size();
      copy_bytes(stream, receive + sum_before(counts, peer) * width, arguments(peer).send, count_of(peer) * width);
    }
  };
  collective(stream, mine, count_of(rank()) * width * (size() - 1), (sum_of(counts) - count_of(rank())) * width, copy,
             [&](int peer) { return count_of(peer) > 0; });
}

void LocalCommunicator::do_reduce_scatter(Stream& stream, DType dtype, const std::byte* send, std::byte* receive,
                                          std::int64_t count, Reduction reduction) {
  const std::int64_t bytes = count * static_cast<std::int64_t>(size_of(dtype));
  CallArguments mine;
  mine.dtype = dtype;
  mine.reduction = reduction;
  mine.count = count;
  mine.send = send;
  // Works in place: only this rank reads its part of `send`.
  const auto copy = [&] {
    for (int peer = 0; peer < size(); ++peer)
      inputs_[static_cast<std::size_t>(peer)] = arguments(peer).send + rank() * bytes;
    reduce(stream, reduction, dtype, receive, count);
  };
  collective(stream, mine, bytes * (size() - 1), bytes * (size() - 1), copy, [](int) { return true; });
}

void LocalCommunicator::do_all_reduce(Stream& stream, DType dtype, const std::byte* send, std::byte* receive,
                                      std::int64_t count, Reduction reduction) {
  const auto width = static_cast<std::int64_t>(size_of(dtype));
  const auto begin_of = [&](int peer) { return count * peer / size(); };
  CallArguments mine;
  mine.dtype = dtype;
  mine.reduction = reduction;
  mine.count = count;
  mine.send = send;
  mine.receive = receive;
  // Every rank reduces one part and then fetches the others'. Works in place: until the barrier in the middle, only
  // rank p reads and writes part p.
  const auto copy = [&] {
    const std::int64_t begin = begin_of(rank()), end = begin_of(rank() + 1);
    for (int peer = 0; peer < size(); ++peer)
      inputs_[static_cast<std::size_t>(peer)] = arguments(peer).send + begin * width;
    reduce(stream, reduction, dtype, receive + begin * width, end - begin);
    arrive_and_wait_at(stream, &LocalGroup::Member::reduced);
    for (int step = 1; step < size(); ++step) {
      const int peer = (rank() + step) % size();
      copy_bytes(stream, receive + begin_of(peer) * width, arguments(peer).receive + begin_of(peer) * width,
                 (begin_of(peer + 1) - begin_of(peer)) * width);
    }
  };
  const std::int64_t bytes = 2 * count * width * (size() - 1) / size();
  collective(stream, mine, bytes, bytes, copy, [](int) { return true; });
}

void LocalCommunicator::do_broadcast(Stream& stream, DType dtype, std::byte* data, std::int64_t count, int root) {
  const std::int64_t bytes = count * static_cast<std::int64_t>(size_of(dtype));
  CallArguments mine;
  mine.dtype = dtype;
  mine.count = count;
  mine.root = root;
  mine.send = data;
  const auto copy = [&] { copy_bytes(stream, data, arguments(root).send, bytes); };
  // As in a pipelined chain or tree, the data leaves the root once.
  collective(stream, mine, rank() == root ? bytes : 0, rank() == root ? 0 : bytes, copy,
             [&](int peer) { return peer == root && count > 0; });
}

void LocalCommunicator::do_barrier(Stream& stream) {
  collective(
      stream, CallArguments{}, 0, 0, [] {}, [](int) { return false; });
}

}  // namespace weft
