#include "weft/comm/nccl/communicator.h"

#include <algorithm>

#include "weft/base/error.h"
#include "weft/comm/counts.h"
#include "weft/comm/nccl/exchange.h"
#include "weft/comm/nccl/setup.h"

namespace weft::nccl {

namespace {

constexpr std::int64_t scratch_bytes = 32 << 20;    // where members are few
constexpr std::int64_t smallest_slot = 256 * 1024;  // where they are many
constexpr std::int64_t alignment = 256;

}  // namespace

NcclCommunicator::NcclCommunicator(std::shared_ptr<Watch> watch, std::unique_ptr<Communicator> host, Setup setup,
                                   std::unique_ptr<Communicator> side_by_side, Device& device)
    : Communicator(host->members(), host->rank(), host->name()),
      watch_(std::move(watch)),
      host_(std::move(host)),
      link_(std::move(setup.link)),
      side_by_side_(std::move(side_by_side)),
      device_(device),
      inputs_(members().size()) {
  if (link_) watch_->add(*link_, device);
}

NcclCommunicator::~NcclCommunicator() {
  if (!link_) return;
  bool broken = false;
  try {
    while (!link_->flights.idle() && !watch_->ended()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  } catch (const std::exception& error) {  // the device's; nothing more can be asked of it
    broken = true;
    watch_->fail(error.what());
  }
  if (broken || watch_->ended()) watch_->abort_links();
  watch_->remove(*link_);
  if (!link_->aborted.exchange(true)) watch_->library().ncclCommDestroy(link_->comm);
}

void NcclCommunicator::connect(Stream& stream, std::byte* memory) {
  watch_->throw_if_ended();
  // Now and once: to allocate or to free memory may wait for the whole device, and kernels there for this rank.
  scratch_ = device_.allocate(static_cast<std::size_t>(slot_bytes() * (size() - 1)));
  std::vector<RankId> others(members().begin(), members().end());
  others.erase(others.begin() + rank());
  link_->flights.begin(stream, Operation::none, 0, others);
  const auto work = [link = link_, library = watch_->shared_library(), device = &device_, queue = stream.native(),
                     memory, me = rank(), n = size()] {
    device->bind_thread();
    Exchange exchange(*library, *link, queue);
    for (int peer = 0; peer < n; ++peer) {
      if (peer == me) continue;
      exchange.send(peer, memory + me, 1);
      exchange.receive(peer, memory + n + peer, 1);
    }
    exchange.queue();
  };
  run_watched(*watch_, *host_, fmt::format("the connecting of group '{}'", name()), work);
  link_->connected.store(true);
  link_->flights.end(stream);
  while (!link_->flights.idle()) {
    watch_->throw_if_ended();
    std::this_thread::sleep_for(std::chrono::microseconds(200));
  }
  // Nobody goes on while another member is still being connected, which may wait for the whole device.
  HostStream host;
  host_->barrier(host);
}

template <class Meets, class Body>
void NcclCommunicator::queue(Stream& stream, const Meets& meets, const Body& body) {
  watch_->throw_if_ended();
  if (!link_) return body();
  waits_for_.clear();
  for (int peer = 0; peer < size(); ++peer)
    if (peer != rank() && meets(peer)) waits_for_.push_back(world_rank(peer));
  try {
    link_->flights.begin(stream, operation(), calls(), waits_for_);
    body();
    link_->flights.end(stream);
  } catch (const Error& error) {
    watch_->throw_if_ended();
    const std::string why = fmt::format("{}: {}", call_text(), error.what());
    watch_->fail(why);
    throw RunError(why);
  } catch (const std::exception& error) {
    watch_->fail(error.what());  // the others wait for what this rank has not queued
    throw;
  }
}

void NcclCommunicator::copy(Stream& stream, std::byte* to, const Out& from) {
  if (from.bytes > 0 && to != from.data) device_.copy(stream, to, from.data, static_cast<std::size_t>(from.bytes));
}

void NcclCommunicator::meet() {
  if (!side_by_side_) return;
  HostStream host;
  host_->barrier(host);
}

template <class Fill>
void NcclCommunicator::exchange(Stream& stream, const Fill& fill) {
  Exchange exchange(watch_->library(), *link_, stream.native());
  fill(exchange);
  exchange.queue();
}

template <class SendPart, class ReceivePart>
void NcclCommunicator::round(Stream& stream, const SendPart& send_part, const ReceivePart& receive_part) {
  if (size() == 1) return;
  meet();
  exchange(stream, [&](Exchange& to_queue) {
    for (int step = 1; step < size(); ++step) {  // every rank begins with another peer
      const int to = (rank() + step) % size(), from = (rank() + size() - step) % size();
      const auto [out, out_bytes] = send_part(to);
      const auto [in, in_bytes] = receive_part(from);
      to_queue.send(to, out, out_bytes);
      to_queue.receive(from, in, in_bytes);
    }
  });
  meet();
}

void NcclCommunicator::do_all_to_all(Stream& stream, DType dtype, const std::byte* send, Counts send_counts,
                                     std::byte* receive, Counts receive_counts) {
  const std::int64_t width = width_of(dtype);
  const auto me = static_cast<std::size_t>(rank());
  if (send_counts[me] != receive_counts[me]) {
    const std::string why = count_mismatch(rank(), send_counts[me], rank(), receive_counts[me]);
    watch_->fail(why);
    throw RunError(why);
  }
  const auto bytes_of = [&](Counts counts, int peer) { return counts[static_cast<std::size_t>(peer)] * width; };
  const auto part_to = [&](int peer) {
    return Out{send + sum_before(send_counts, peer) * width, bytes_of(send_counts, peer)};
  };
  const auto part_from = [&](int peer) {
    return In{receive + sum_before(receive_counts, peer) * width, bytes_of(receive_counts, peer)};
  };
  queue(
      stream, [&](int peer) { return bytes_of(send_counts, peer) > 0 || bytes_of(receive_counts, peer) > 0; },
      [&] {
        copy(stream, part_from(rank()).data, part_to(rank()));
        round(stream, part_to, part_from);
      });
}

void NcclCommunicator::do_all_gather(Stream& stream, DType dtype, const std::byte* send, std::byte* receive,
                                     Counts counts) {
  const std::int64_t width = width_of(dtype);
  const auto part_from = [&](int peer) {
    return In{receive + sum_before(counts, peer) * width, counts[static_cast<std::size_t>(peer)] * width};
  };
  const Out mine{send, part_from(rank()).bytes};
  queue(
      stream, [&](int peer) { return part_from(peer).bytes > 0 || mine.bytes > 0; },
      [&] {
        copy(stream, part_from(rank()).data, mine);
        round(
            stream, [&](int) { return mine; }, part_from);
      });
}

std::int64_t NcclCommunicator::slot_bytes() const {
  return std::max(smallest_slot, scratch_bytes / std::max(1, size() - 1) / alignment * alignment);
}

std::byte* NcclCommunicator::slot(int peer) const {
  return scratch_->data() + (peer < rank() ? peer : peer - 1) * slot_bytes();
}

void NcclCommunicator::reduce_slots(Stream& stream, DType dtype, const std::byte* own, std::byte* out,
                                    std::int64_t count, Reduction reduction) {
  if (count == 0) return;
  for (int peer = 0; peer < size(); ++peer) inputs_[static_cast<std::size_t>(peer)] = peer == rank() ? own : slot(peer);
  device_.reduce(stream, reduction, dtype, out, inputs_, count);
}

template <class BeginOf>
void NcclCommunicator::reduce_parts(Stream& stream, DType dtype, const std::byte* send, const BeginOf& begin_of,
                                    std::byte* out, Reduction reduction) {
  const std::int64_t width = width_of(dtype), at_once = slot_bytes() / width;
  std::int64_t longest = 0;
  for (int peer = 0; peer < size(); ++peer) longest = std::max(longest, begin_of(peer + 1) - begin_of(peer));
  for (std::int64_t at = 0; at < longest; at += at_once) {
    const auto count_of = [&](int peer) {
      return std::clamp(begin_of(peer + 1) - begin_of(peer) - at, std::int64_t{0}, at_once);
    };
    const auto part_to = [&](int peer) { return Out{send + (begin_of(peer) + at) * width, count_of(peer) * width}; };
    const std::int64_t mine = count_of(rank());
    round(stream, part_to, [&](int peer) { return In{slot(peer), mine * width}; });
    reduce_slots(stream, dtype, part_to(rank()).data, out + at * width, mine, reduction);
  }
}

void NcclCommunicator::do_reduce_scatter(Stream& stream, DType dtype, const std::byte* send, std::byte* receive,
                                         std::int64_t count, Reduction reduction) {
  queue(
      stream, [&](int) { return count > 0; },
      [&] {
        if (size() == 1) return copy(stream, receive, {send, count * width_of(dtype)});
        reduce_parts(
            stream, dtype, send, [&](int peer) { return count * peer; }, receive, reduction);
      });
}

void NcclCommunicator::do_all_reduce(Stream& stream, DType dtype, const std::byte* send, std::byte* receive,
                                     std::int64_t count, Reduction reduction) {
  const Out all{send, count * width_of(dtype)};
  const auto begin_of = [&](int peer) { return count * peer / size(); };
  const auto part_from = [&](int peer) {
    return In{receive + begin_of(peer) * width_of(dtype), (begin_of(peer + 1) - begin_of(peer)) * width_of(dtype)};
  };
  queue(
      stream, [&](int) { return count > 0; },
      [&] {
        if (size() == 1) return copy(stream, receive, all);
        if (count == 0) return;
        if (all.bytes <= small_all_reduce) {
          round(
              stream, [&](int) { return all; },
              [&](int peer) {
                return In{slot(peer), all.bytes};
              });
          return reduce_slots(stream, dtype, send, receive, count, reduction);
        }
        const In mine = part_from(rank());
        reduce_parts(stream, dtype, send, begin_of, mine.data, reduction);
        round(
            stream,
            [&](int) {
              return Out{mine.data, mine.bytes};
            },
            part_from);
      });
}

void NcclCommunicator::do_broadcast(Stream& stream, DType dtype, std::byte* data, std::int64_t count, int root) {
  const std::int64_t length = count * width_of(dtype);
  queue(
      stream, [&](int peer) { return length > 0 && (rank() == root || peer == root); },
      [&] {
        round(
            stream,
            [&](int) {
              return Out{data, rank() == root ? length : 0};
            },
            [&](int peer) {
              return In{data, peer == root ? length : 0};
            });
      });
}

void NcclCommunicator::do_transfer(Stream& stream, std::span<const Transfer> transfers) {
  const auto bytes_of = [](const Transfer& each) {
    return each.data.given() ? static_cast<std::int64_t>(each.data.bytes()) : 0;
  };
  const auto meets = [&](int peer) {
    return std::ranges::any_of(transfers,
                               [&](const Transfer& each) { return each.peer == peer && bytes_of(each) > 0; });
  };
  if (transfers.empty()) return;
  if (side_by_side_) return side_by_side_->transfer(stream, transfers);
  queue(stream, meets, [&] {
    exchange(stream, [&](Exchange& to_queue) {
      for (const Transfer& each : transfers) {
        if (each.direction == Transfer::Direction::send)
          to_queue.send(each.peer, each.data.as<const std::byte>(), bytes_of(each));
        else
          to_queue.receive(each.peer, each.data.as<std::byte>(), bytes_of(each));
      }
    });
  });
}

void NcclCommunicator::do_barrier(Stream& stream) {
  watch_->throw_if_ended();
  stream.synchronize();
  watch_->throw_if_ended();
  HostStream host;
  host_->barrier(host);
}

}  // namespace weft::nccl
