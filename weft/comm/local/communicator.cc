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
  state_->standing(self()).add(this);
}

LocalCommunicator::~LocalCommunicator() { state_->standing(self()).remove(this); }

void LocalCommunicator::meet() {
  const auto members = static_cast<std::uint64_t>(size());
  ++meetings_;
  group_->members[static_cast<std::size_t>(rank())].meetings.store(meetings_);
  if (group_->arrivals.fetch_add(1) + 1 == meetings_ * members) {
    group_->signal.notify();
    return;
  }
  wait([&] { return group_->arrivals.load() >= meetings_ * members; },
       [&] {
         std::vector<RankId> missing;
         for (int peer = 0; peer < size(); ++peer)
           if (group_->members[static_cast<std::size_t>(peer)].meetings.load() < meetings_)
             missing.push_back(world_rank(peer));
         return missing;
       });
}

void LocalCommunicator::meet_at(Stream& stream, Point point) {
  if (device_) (group_->members[static_cast<std::size_t>(rank())].*point)->record(stream);
  meet();
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

void LocalCommunicator::check_posts() const {
  const Post& mine = post(rank());
  for (int peer = 0; peer < size(); ++peer) {
    const Post& theirs = post(peer);
    const auto differ = [&](std::string_view what, auto their_value, auto my_value) {
      throw RunError("{}: {} gives {} {}, {} gives {}", call_text(), member_text(peer), what, their_value,
                     member_text(rank()), my_value);
    };
    if (theirs.operation != mine.operation)
      throw RunError("{}: {} calls {} meanwhile", call_text(), member_text(peer), name_of(theirs.operation));
    if (theirs.dtype != mine.dtype) differ("dtype", name_of(theirs.dtype), name_of(mine.dtype));
    if (theirs.root != mine.root) differ("root", theirs.root, mine.root);
    if (theirs.count != mine.count) differ("elements:", theirs.count, mine.count);
    if (theirs.reduction != mine.reduction) differ("reduction", name_of(theirs.reduction), name_of(mine.reduction));
    const auto me = static_cast<std::size_t>(rank()), they = static_cast<std::size_t>(peer);
    if (mine.operation == Operation::all_gather) {
      for (const std::size_t entry : {me, they})
        if (theirs.send_counts[entry] != mine.send_counts[entry])
          differ(fmt::format("as count of {}", member_text(static_cast<int>(entry))), theirs.send_counts[entry],
                 mine.send_counts[entry]);
    } else if (mine.operation == Operation::all_to_all) {
      if (theirs.send_counts[me] != mine.receive_counts[they])
        throw RunError(count_mismatch(peer, theirs.send_counts[me], rank(), mine.receive_counts[they]));
      if (mine.send_counts[they] != theirs.receive_counts[me])
        throw RunError(count_mismatch(rank(), mine.send_counts[they], peer, theirs.receive_counts[me]));
    }
  }
}

template <class Copy, class SendsHere>
void LocalCommunicator::collective(Stream& stream, const Post& mine, std::int64_t bytes_out, std::int64_t bytes_in,
                                   const Copy& copy, const SendsHere& sends_here) {
  LocalGroup::Member& self_member = group_->members[static_cast<std::size_t>(rank())];
  self_member.post = mine;
  self_member.post.operation = operation();
  const std::size_t parity = ++collectives_ % 2;
  Nanoseconds through = 0;
  try {
    state_->throw_if_ended();
    const Nanoseconds arrival = now_ns();
    for (Nanoseconds latest = group_->latest_arrival.load();
         latest < arrival && !group_->latest_arrival.compare_exchange_weak(latest, arrival);) {
    }
    meet_at(stream, &LocalGroup::Member::ready);
    if (link_ != nullptr && size() > 1) {
      const Link::Times times = link_->reserve(group_->latest_arrival.load(), bytes_out, bytes_in);
      self_member.out_through[parity] = times.out;
      through = std::max(times.out, times.in);
    }
    {
      const Reading reading(*this);
      check_posts();
      copy();
    }
    meet_at(stream, &LocalGroup::Member::done);
  } catch (const std::exception& error) {
    leave_by_failure(error.what());
    throw;
  }
  if (link_ == nullptr || size() == 1) return;
  for (int peer = 0; peer < size(); ++peer)
    if (sends_here(peer))
      through = std::max(through, group_->members[static_cast<std::size_t>(peer)].out_through[parity]);
  link_->complete(through, state_->ended());
  state_->throw_if_ended();
}

void LocalCommunicator::do_all_to_all(Stream& stream, DType dtype, const std::byte* send, Counts send_counts,
                                      std::byte* receive, Counts receive_counts) {
  const auto width = static_cast<std::int64_t>(size_of(dtype));
  const auto me = static_cast<std::size_t>(rank());
  Post mine;
  mine.dtype = dtype;
  mine.send = send;
  mine.send_counts = send_counts;
  mine.receive_counts = receive_counts;
  const auto copy = [&] {
    for (int step = 0; step < size(); ++step) {  // every rank begins with another peer
      const int peer = (rank() + step) % size();
      const Post& theirs = post(peer);
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
  Post mine;
  mine.dtype = dtype;
  mine.send = send;
  mine.send_counts = counts;
  const auto copy = [&] {
    for (int step = 0; step < size(); ++step) {
      const int peer = (rank() + step) % size();
      copy_bytes(stream, receive + sum_before(counts, peer) * width, post(peer).send, count_of(peer) * width);
    }
  };
  collective(stream, mine, count_of(rank()) * width * (size() - 1), (sum_of(counts) - count_of(rank())) * width, copy,
             [&](int peer) { return count_of(peer) > 0; });
}

void LocalCommunicator::do_reduce_scatter(Stream& stream, DType dtype, const std::byte* send, std::byte* receive,
                                          std::int64_t count, Reduction reduction) {
  const std::int64_t bytes = count * static_cast<std::int64_t>(size_of(dtype));
  Post mine;
  mine.dtype = dtype;
  mine.reduction = reduction;
  mine.count = count;
  mine.send = send;
  // In place is fine: this rank's part of `send` is read by this rank alone.
  const auto copy = [&] {
    for (int peer = 0; peer < size(); ++peer)
      inputs_[static_cast<std::size_t>(peer)] = post(peer).send + rank() * bytes;
    reduce(stream, reduction, dtype, receive, count);
  };
  collective(stream, mine, bytes * (size() - 1), bytes * (size() - 1), copy, [](int) { return true; });
}

void LocalCommunicator::do_all_reduce(Stream& stream, DType dtype, const std::byte* send, std::byte* receive,
                                      std::int64_t count, Reduction reduction) {
  const auto width = static_cast<std::int64_t>(size_of(dtype));
  const auto begin_of = [&](int peer) { return count * peer / size(); };
  Post mine;
  mine.dtype = dtype;
  mine.reduction = reduction;
  mine.count = count;
  mine.send = send;
  mine.receive = receive;
  // Everyone reduces one part and then fetches the others'. In place is fine: part p is read and written by rank p
  // alone before the meeting in the middle.
  const auto copy = [&] {
    const std::int64_t begin = begin_of(rank()), end = begin_of(rank() + 1);
    for (int peer = 0; peer < size(); ++peer) inputs_[static_cast<std::size_t>(peer)] = post(peer).send + begin * width;
    reduce(stream, reduction, dtype, receive + begin * width, end - begin);
    meet_at(stream, &LocalGroup::Member::reduced);
    for (int step = 1; step < size(); ++step) {
      const int peer = (rank() + step) % size();
      copy_bytes(stream, receive + begin_of(peer) * width, post(peer).receive + begin_of(peer) * width,
                 (begin_of(peer + 1) - begin_of(peer)) * width);
    }
  };
  const std::int64_t bytes = 2 * count * width * (size() - 1) / size();
  collective(stream, mine, bytes, bytes, copy, [](int) { return true; });
}

void LocalCommunicator::do_broadcast(Stream& stream, DType dtype, std::byte* data, std::int64_t count, int root) {
  const std::int64_t bytes = count * static_cast<std::int64_t>(size_of(dtype));
  Post mine;
  mine.dtype = dtype;
  mine.count = count;
  mine.root = root;
  mine.send = data;
  const auto copy = [&] { copy_bytes(stream, data, post(root).send, bytes); };
  // As a pipelined chain or tree would: the data leaves the root once.
  collective(stream, mine, rank() == root ? bytes : 0, rank() == root ? 0 : bytes, copy,
             [&](int peer) { return peer == root && count > 0; });
}

void LocalCommunicator::do_barrier(Stream& stream) {
  collective(
      stream, Post{}, 0, 0, [] {}, [](int) { return false; });
}

}  // namespace weft
