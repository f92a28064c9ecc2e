#include "weft/comm/nccl/communicator.h"

#include <algorithm>

#include "weft/base/error.h"
#include "weft/comm/counts.h"
#include "weft/comm/nccl/exchange.h"
#include "weft/comm/nccl/setup.h"

namespace weft::nccl {

namespace {

constexpr std::int64_t scratch_bytes = 32 << 20;    // for few members
constexpr std::int64_t smallest_slot = 256 * 1024;  // for many
constexpr std::int64_t alignment = 256;

}  // namespace

NcclCommunicator::NcclCommunicator(std::shared_ptr<Watchdog> watchdog, std::unique_ptr<Communicator> host, Setup setup,
                                   std::unique_ptr<Communicator> thread_group, Device& device)
    : Communicator(host->members(), host->rank(), host->name()),
      watchdog_(std::move(watchdog)),
      host_(std::move(host)),
      handle_(std::move(setup.handle)),
      thread_group_(std::move(thread_group)),
      device_(device),
      inputs_(members().size()) {
  if (handle_) watchdog_->add(*handle_, device);
}

NcclCommunicator::~NcclCommunicator() {
  if (!handle_) return;
  bool broken = false;
  try {
    while (!handle_->queued.idle() && !watchdog_->ended()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  } catch (const std::exception& error) {  // the device failed and cannot be used any more
    broken = true;
    watchdog_->fail(error.what());
  }
  if (broken || watchdog_->ended()) watchdog_->abort_all();
  watchdog_->remove(*handle_);
  if (!handle_->aborted.exchange(true)) watchdog_->library().ncclCommDestroy(handle_->comm);
}

void NcclCommunicator::connect(Stream& stream, std::byte* memory) {
  watchdog_->throw_if_ended();
  // Allocated here, once: allocating or freeing memory may wait for the whole device, and kernels on it may wait for
  // this rank.
  scratch_ = device_.allocate(static_cast<std::size_t>(slot_bytes() * (size() - 1)));
  std::vector<RankId> others(members().begin(), members().end());
  others.erase(others.begin() + rank());
  handle_->queued.begin(stream, Operation::none, 0, others);
  const auto work = [handle = handle_, library = watchdog_->shared_library(), device = &device_,
                     queue = stream.native(), memory, me = rank(), n = size()] {
    device->bind_thread();
    Exchange exchange(*library, *handle, queue);
    for (int peer = 0; peer < n; ++peer) {
      if (peer == me) continue;
      exchange.send(peer, memory + me, 1);
      exchange.receive(peer, memory + n + peer, 1);
    }
    exchange.queue();
  };
  run_watched(*watchdog_, *host_, fmt::format("connecting group '{}'", name()), work);
  handle_->connected.store(true);
  handle_->queued.end(stream);
  while (!handle_->queued.idle()) {
    watchdog_->throw_if_ended();
    std::this_thread::sleep_for(std::chrono::microseconds(200));
  }
  // No member continues while another is still connecting, which may wait for the whole device.
  HostStream host;
  host_->barrier(host);
}

template <class WaitsFor, class Body>
void NcclCommunicator::queue(Stream& stream, const WaitsFor& waits_for, const Body& body) {
  if (recording_) return body();  // an error ends the recording, and no peer waits yet
  watchdog_->throw_if_ended();
  if (!handle_) return body();
  waits_for_.clear();
  for (int peer = 0; peer < size(); ++peer)
    if (peer != rank() && waits_for(peer)) waits_for_.push_back(world_rank(peer));
  try {
    handle_->queued.begin(stream, operation(), calls(), waits_for_);
    body();
    handle_->queued.end(stream);
  } catch (const Error& error) {
    watchdog_->throw_if_ended();
    const std::string why = fmt::format("{}: {}", call_text(), error.what());
    watchdog_->fail(why);
    throw RunError(why);
  } catch (const std::exception& error) {
    watchdog_->fail(error.what());  // the others wait for work that this rank has not queued
    throw;
  }
}

void NcclCommunicator::begin_replay(Stream& stream) {
  watchdog_->throw_if_ended();
  if (!handle_) return;
  waits_for_.clear();
  for (int peer = 0; peer < size(); ++peer)
    if (peer != rank()) waits_for_.push_back(world_rank(peer));
  handle_->queued.begin(stream, Operation::replay, calls(), waits_for_);
}

void NcclCommunicator::end_replay(Stream& stream) {
  if (handle_) handle_->queued.end(stream);
}

void NcclCommunicator::copy(Stream& stream, std::byte* to, const Out& from) {
  if (from.bytes > 0 && to != from.data) device_.copy(stream, to, from.data, static_cast<std::size_t>(from.bytes));
}

void NcclCommunicator::barrier_if_shared() {
  if (!thread_group_) return;
  HostStream host;
  host_->barrier(host);
}

template <class Fill>
void NcclCommunicator::exchange(Stream& stream, const Fill& fill) {
  Exchange exchange(watchdog_->library(), *handle_, stream.native());
  fill(exchange);
  exchange.queue();
}

template <class SendPart, class ReceivePart>
void NcclCommunicator::round(Stream& stream, const SendPart& send_part, const ReceivePart& receive_part) {
  if (size() == 1) return;
  barrier_if_shared();
  exchange(stream, [&](Exchange& to_queue) {
    for (int step = 1; step < size(); ++step) {  // every rank starts with a different peer
      const int to = (rank() + step) % size(), from = (rank() + size() - step) % size();
      const auto [out, out_bytes] = send_part(to);
      const auto [in, in_bytes] = receive_part(from);
      to_queue.send(to, out, out_bytes);
      to_queue.receive(from, in, in_bytes);
    }
  });
  barrier_if_shared();
}

void NcclCommunicator::do_all_to_all(Stream& stream, DType dtype, const std::byte* send, Counts send_counts,
                                     std::byte* receive, Counts receive_counts) {
  const std::int64_t width = width_of(dtype);
  const auto me = static_cast<std::size_t>(rank());
  if (send_counts[me] != receive_counts[me]) {
    const std::string why = count_mismatch(rank(), send_counts[me], rank(), receive_counts[me]);
    watchdog_->fail(why);
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
  const auto waits_for = [&](int peer) {
    return std::ranges::any_of(transfers,
                               [&](const Transfer& each) { return each.peer == peer && bytes_of(each) > 0; });
  };
  if (transfers.empty()) return;
  if (thread_group_) return thread_group_->transfer(stream, transfers);
  queue(stream, waits_for, [&] {
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
  watchdog_->throw_if_ended();
  stream.synchronize();
  watchdog_->throw_if_ended();
  HostStream host;
  host_->barrier(host);
}

}  // namespace weft::nccl
