#include "weft/comm/communicator.h"

#include <algorithm>
#include <numeric>

#include "weft/base/error.h"

namespace weft {

std::string_view name_of(Operation operation) {
  switch (operation) {
    case Operation::none:
      return "nothing";
    case Operation::all_to_all:
      return "all_to_all";
    case Operation::all_gather:
      return "all_gather";
    case Operation::reduce_scatter:
      return "reduce_scatter";
    case Operation::all_reduce:
      return "all_reduce";
    case Operation::broadcast:
      return "broadcast";
    case Operation::transfer:
      return "transfer";
    case Operation::replay:
      return "a recorded step";
    case Operation::barrier:
      return "barrier";
  }
  return "?";
}

// Marks a call as in progress, and checks its arguments.
class Communicator::Call {
 public:
  Call(Communicator& on, Operation operation) : on_(on) {
    Operation before = Operation::none;
    WEFT_CHECK(on.operation_.compare_exchange_strong(before, operation, std::memory_order_acquire),
               "group '{}' is used by two threads at once: {} during {}", on.name_, name_of(operation),
               name_of(before));
    on.calls_.fetch_add(1, std::memory_order_relaxed);
  }
  ~Call() { on_.operation_.store(Operation::none, std::memory_order_release); }
  Call(const Call&) = delete;
  Call& operator=(const Call&) = delete;

  // The memory of a buffer of this call that holds at least (within) or exactly `elements`.
  enum class Fit : std::uint8_t { exact, within };
  std::byte* buffer(const char* what, const Tensor& tensor, std::int64_t elements, Fit fit = Fit::exact) const {
    const std::int64_t has = tensor.given() ? tensor.shape.elements() : 0;
    check(!tensor.given() || tensor.contiguous(), fmt::format("{} is not contiguous", what));
    check(fit == Fit::exact ? has == elements : has >= elements,
          fmt::format("{} {} has {} elements, {} are needed", what, to_text(tensor.shape), has, elements));
    check(tensor.data != nullptr || elements == 0, fmt::format("{} has no memory", what));
    return tensor.as<std::byte>();
  }
  void check(bool holds, const std::string& message) const {
    WEFT_CHECK(holds, "{} on {}: {}", on_.call_text(), on_.member_text(on_.rank_), message);
  }
  std::int64_t sum(const char* what, Counts counts) const {
    check(counts.size() == on_.members_.size(),
          fmt::format("{} has {} entries for {} ranks", what, counts.size(), on_.members_.size()));
    check(std::ranges::all_of(counts, [](std::int64_t n) { return n >= 0; }),
          fmt::format("{} has a negative entry", what));
    return std::accumulate(counts.begin(), counts.end(), std::int64_t{0});
  }
  // The two ranges do not overlap; if a byte offset is allowed, `part` may be exactly there in `whole`.
  void check_apart(const std::byte* whole, std::size_t whole_bytes, const std::byte* part, std::size_t part_bytes,
                   std::ptrdiff_t allowed = -1) const {
    if (whole_bytes == 0 || part_bytes == 0 || whole + whole_bytes <= part || part + part_bytes <= whole) return;
    check(allowed >= 0 && part == whole + allowed, "send and receive overlap");
  }
  void check_peer(int peer) const {
    check(peer >= 0 && peer < on_.size(), fmt::format("there is no peer {} among {}", peer, on_.size()));
  }

 private:
  Communicator& on_;
};

Communicator::Communicator(std::span<const RankId> members, int rank, std::string name)
    : members_(members.begin(), members.end()), rank_(rank), name_(std::move(name)), even_(members.size()) {}

std::string Communicator::call_text() const {
  return fmt::format("{} (call {}) of group '{}'", name_of(operation()), calls(), name_);
}

std::string Communicator::member_text(int peer) const { return fmt::format("rank {}", world_rank(peer).value); }

std::string Communicator::count_mismatch(int sender, std::int64_t sent, int receiver, std::int64_t expected) const {
  return fmt::format("{}: {} sends {} elements to {}, which expects {}", call_text(), member_text(sender), sent,
                     member_text(receiver), expected);
}

void Communicator::all_to_all(Stream& stream, const Tensor& send, Counts send_counts, const Tensor& receive,
                              Counts receive_counts) {
  const Call call(*this, Operation::all_to_all);
  const std::int64_t sent = call.sum("send_counts", send_counts);
  const std::int64_t received = call.sum("receive_counts", receive_counts);
  const std::byte* from = call.buffer("send", send, sent, Call::Fit::within);
  std::byte* to = call.buffer("receive", receive, received, Call::Fit::within);
  call.check(send.dtype == receive.dtype, "send and receive differ in dtype");
  const std::size_t width = size_of(send.dtype);
  call.check_apart(from, static_cast<std::size_t>(sent) * width, to, static_cast<std::size_t>(received) * width);
  do_all_to_all(stream, send.dtype, from, send_counts, to, receive_counts);
}

void Communicator::all_gather(Stream& stream, const Tensor& send, const Tensor& receive) {
  std::ranges::fill(even_, send.given() ? send.shape.elements() : 0);
  all_gather(stream, send, receive, even_);
}

void Communicator::all_gather(Stream& stream, const Tensor& send, const Tensor& receive, Counts counts) {
  const Call call(*this, Operation::all_gather);
  const std::int64_t all = call.sum("counts", counts);
  const auto mine = static_cast<std::size_t>(rank_);
  const std::int64_t before = std::accumulate(counts.begin(), counts.begin() + rank_, std::int64_t{0});
  const std::byte* from = call.buffer("send", send, counts[mine]);
  std::byte* to = call.buffer("receive", receive, all);
  call.check(send.dtype == receive.dtype, "send and receive differ in dtype");
  const std::size_t width = size_of(send.dtype);
  call.check_apart(to, static_cast<std::size_t>(all) * width, from, static_cast<std::size_t>(counts[mine]) * width,
                   before * static_cast<std::ptrdiff_t>(width));
  do_all_gather(stream, send.dtype, from, to, counts);
}

void Communicator::reduce_scatter(Stream& stream, const Tensor& send, const Tensor& receive, Reduction reduction) {
  const Call call(*this, Operation::reduce_scatter);
  const std::int64_t count = receive.given() ? receive.shape.elements() : 0;
  std::byte* to = call.buffer("receive", receive, count);
  const std::byte* from = call.buffer("send", send, count * size());
  call.check(send.dtype == receive.dtype, "send and receive differ in dtype");
  const auto bytes = static_cast<std::size_t>(count) * size_of(send.dtype);
  call.check_apart(from, bytes * members_.size(), to, bytes,
                   static_cast<std::ptrdiff_t>(bytes * static_cast<std::size_t>(rank_)));
  do_reduce_scatter(stream, send.dtype, from, to, count, reduction);
}

void Communicator::all_reduce(Stream& stream, const Tensor& send, const Tensor& receive, Reduction reduction) {
  const Call call(*this, Operation::all_reduce);
  const std::int64_t count = send.given() ? send.shape.elements() : 0;
  const std::byte* from = call.buffer("send", send, count);
  std::byte* to = call.buffer("receive", receive, count);
  call.check(send.dtype == receive.dtype, "send and receive differ in dtype");
  const auto bytes = static_cast<std::size_t>(count) * size_of(send.dtype);
  call.check_apart(from, bytes, to, bytes, 0);
  do_all_reduce(stream, send.dtype, from, to, count, reduction);
}

void Communicator::broadcast(Stream& stream, const Tensor& data, int root) {
  const Call call(*this, Operation::broadcast);
  call.check_peer(root);
  const std::int64_t count = data.given() ? data.shape.elements() : 0;
  std::byte* at = call.buffer("data", data, count);
  do_broadcast(stream, data.dtype, at, count, root);
}

void Communicator::transfer(Stream& stream, std::span<const Transfer> transfers) {
  const Call call(*this, Operation::transfer);
  for (const Transfer& each : transfers) {
    call.check_peer(each.peer);
    call.check(each.peer != rank_, "a rank does not send to itself");
    call.buffer("data", each.data, each.data.given() ? each.data.shape.elements() : 0);
  }
  do_transfer(stream, transfers);
}

void Communicator::send(Stream& stream, const Tensor& data, int peer) {
  const Transfer one{Transfer::Direction::send, peer, data};
  transfer(stream, std::span(&one, 1));
}

void Communicator::receive(Stream& stream, const Tensor& data, int peer) {
  const Transfer one{Transfer::Direction::receive, peer, data};
  transfer(stream, std::span(&one, 1));
}

void Communicator::barrier(Stream& stream) {
  const Call call(*this, Operation::barrier);
  do_barrier(stream);
}

int index_in_group(std::span<const RankId> members, RankId self, int size, const std::string& name) {
  for (std::size_t i = 0; i < members.size(); ++i) {
    WEFT_CHECK(members[i].valid() && members[i].value < size, "group '{}': there is no rank {} among {}", name,
               members[i].value, size);
    WEFT_CHECK(std::ranges::find(members.first(i), members[i]) == members.begin() + static_cast<std::ptrdiff_t>(i),
               "group '{}': rank {} is a member twice", name, members[i].value);
  }
  const auto found = std::ranges::find(members, self);
  WEFT_CHECK(found != members.end(), "group '{}': rank {} makes it but is not a member", name, self.value);
  return static_cast<int>(found - members.begin());
}

}  // namespace weft
