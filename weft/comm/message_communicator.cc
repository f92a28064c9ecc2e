#include "weft/comm/message_communicator.h"

#include <cstring>

#include "weft/base/error.h"
#include "weft/comm/counts.h"
#include "weft/device/reduction.h"

namespace weft {

namespace {

// Tags stay within the 32767 that every MPI supports. The tag of a collective holds the round's number and the
// operation, so that ranks that make different calls never take each other's data. Transfers are matched by order
// alone.
constexpr std::uint64_t tag_rounds = 4095;
constexpr int transfer_tag = 4095 * 8;

void copy_bytes(std::byte* to, const std::byte* from, std::int64_t bytes) {
  if (bytes > 0 && to != from) std::memcpy(to, from, static_cast<std::size_t>(bytes));
}

}  // namespace

MessageCommunicator::MessageCommunicator(std::shared_ptr<Control> control, std::unique_ptr<Messages> messages,
                                         std::span<const RankId> members, int rank, const std::string& name)
    : Communicator(members, rank, name),
      control_(std::move(control)),
      messages_(std::move(messages)),
      inputs_(members.size()) {
  control_->activity().add(this);
}

MessageCommunicator::~MessageCommunicator() { control_->activity().remove(this); }

void MessageCommunicator::begin_round() {
  control_->throw_if_ended();
  tag_ = static_cast<int>(rounds_++ % tag_rounds) * 8 + static_cast<int>(operation());
}

void MessageCommunicator::finish_round() {
  finish(
      *messages_, *control_, [this] { return call_text(); }, [this](int peer) { return world_rank(peer); });
  if (!messages_->mismatch()) return;
  const Messages::Mismatch mismatch = *messages_->mismatch();
  const std::string why = count_mismatch(mismatch.peer, mismatch.sent, rank(), mismatch.expected);
  control_->fail(why);
  messages_->abandon();
  throw RunError(why);
}

template <class SendPart, class ReceivePart>
void MessageCommunicator::round(const std::byte* send, const SendPart& send_part, std::byte* receive,
                                const ReceivePart& receive_part, DType dtype) {
  begin_round();
  for (int step = 1; step < size(); ++step) {
    const int peer = (rank() + size() - step) % size();
    const ByteRange part = receive_part(peer);
    messages_->receive(peer, tag_, receive + part.at, part.bytes, width_of(dtype));
  }
  for (int step = 1; step < size(); ++step) {  // every rank starts with a different peer
    const int peer = (rank() + step) % size();
    const ByteRange part = send_part(peer);
    messages_->send(peer, tag_, send + part.at, part.bytes);
  }
  finish_round();
}

void MessageCommunicator::do_all_to_all(Stream&, DType dtype, const std::byte* send, Counts send_counts,
                                        std::byte* receive, Counts receive_counts) {
  const std::int64_t width = width_of(dtype);
  const auto part_of = [&](Counts counts, int peer) {
    return ByteRange{sum_before(counts, peer) * width, counts[static_cast<std::size_t>(peer)] * width};
  };
  const ByteRange from = part_of(send_counts, rank()), to = part_of(receive_counts, rank());
  if (from.bytes != to.bytes) {
    const std::string why = count_mismatch(rank(), from.bytes / width, rank(), to.bytes / width);
    control_->fail(why);
    throw RunError(why);
  }
  round(
      send, [&](int peer) { return part_of(send_counts, peer); }, receive,
      [&](int peer) { return part_of(receive_counts, peer); }, dtype);
  copy_bytes(receive + to.at, send + from.at, from.bytes);
}

void MessageCommunicator::do_all_gather(Stream&, DType dtype, const std::byte* send, std::byte* receive,
                                        Counts counts) {
  const std::int64_t width = width_of(dtype);
  const auto part_of = [&](int peer) {
    return ByteRange{sum_before(counts, peer) * width, counts[static_cast<std::size_t>(peer)] * width};
  };
  const ByteRange mine = part_of(rank());
  round(
      send,
      [&](int) {
        return ByteRange{0, mine.bytes};
      },
      receive, part_of, dtype);
  copy_bytes(receive + mine.at, send, mine.bytes);
}

std::byte* MessageCommunicator::scratch(std::int64_t bytes) {
  if (static_cast<std::int64_t>(scratch_.size()) < bytes) scratch_.resize(static_cast<std::size_t>(bytes));
  return scratch_.data();
}

void MessageCommunicator::reduce_scratch(Reduction reduction, DType dtype, const std::byte* own, std::byte* out,
                                         std::int64_t count) {
  for (int peer = 0; peer < size(); ++peer)
    inputs_[static_cast<std::size_t>(peer)] = peer == rank() ? own : scratch_.data() + peer * count * width_of(dtype);
  reduce_in_rank_order(reduction, dtype, out, inputs_, count);
}

void MessageCommunicator::do_reduce_scatter(Stream&, DType dtype, const std::byte* send, std::byte* receive,
                                            std::int64_t count, Reduction reduction) {
  const std::int64_t bytes = count * width_of(dtype);
  const auto part_of = [&](int peer) { return ByteRange{peer * bytes, bytes}; };
  round(send, part_of, scratch(bytes * size()), part_of, dtype);
  reduce_scratch(reduction, dtype, send + rank() * bytes, receive, count);
}

void MessageCommunicator::do_all_reduce(Stream&, DType dtype, const std::byte* send, std::byte* receive,
                                        std::int64_t count, Reduction reduction) {
  const std::int64_t width = width_of(dtype);
  if (count * width <= small_all_reduce) {
    const std::int64_t bytes = count * width;
    round(
        send,
        [&](int) {
          return ByteRange{0, bytes};
        },
        scratch(bytes * size()),
        [&](int peer) {
          return ByteRange{peer * bytes, bytes};
        },
        dtype);
    reduce_scratch(reduction, dtype, send, receive, count);
    return;
  }
  const auto begin_of = [&](int peer) { return count * peer / size(); };
  const auto part_of = [&](int peer) {
    return ByteRange{begin_of(peer) * width, (begin_of(peer + 1) - begin_of(peer)) * width};
  };
  const ByteRange mine = part_of(rank());
  round(
      send, part_of, scratch(mine.bytes * size()),
      [&](int peer) {
        return ByteRange{peer * mine.bytes, mine.bytes};
      },
      dtype);
  reduce_scratch(reduction, dtype, send + mine.at, receive + mine.at, mine.bytes / width);
  round(
      receive + mine.at,
      [&](int) {
        return ByteRange{0, mine.bytes};
      },
      receive, part_of, dtype);
}

void MessageCommunicator::do_broadcast(Stream&, DType dtype, std::byte* data, std::int64_t count, int root) {
  const std::int64_t bytes = count * width_of(dtype);
  begin_round();
  if (rank() == root) {
    for (int peer = 0; peer < size(); ++peer)
      if (peer != root) messages_->send(peer, tag_, data, bytes);
  } else {
    messages_->receive(root, tag_, data, bytes, width_of(dtype));
  }
  finish_round();
}

void MessageCommunicator::do_transfer(Stream&, std::span<const Transfer> transfers) {
  control_->throw_if_ended();
  for (const Transfer& each : transfers) {
    const std::int64_t bytes = each.data.given() ? static_cast<std::int64_t>(each.data.bytes()) : 0;
    if (each.direction == Transfer::Direction::receive) {
      messages_->receive(each.peer, transfer_tag, each.data.as<std::byte>(), bytes, width_of(each.data.dtype));
    } else {
      messages_->send(each.peer, transfer_tag, each.data.as<const std::byte>(), bytes);
    }
  }
  finish_round();
}

void MessageCommunicator::do_barrier(Stream&) {
  const auto nothing = [](int) { return ByteRange{}; };
  round(nullptr, nothing, nullptr, nothing, DType::u8);
}

}  // namespace weft
