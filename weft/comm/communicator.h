// One rank's end of a group of ranks, for one lane. Implementations: local/ (ranks are threads), mpi/, tcp/, nccl/.
//
//   Peers are numbered 0..size-1 within the group; members() gives their ranks in the world, which error messages name.
//   All members make the same calls in the same order; transfers match pairwise, in order. One thread at a time uses a
//   communicator. Different communicators are independent, even over the same ranks, and may be used concurrently.
//   Buffers are contiguous device memory. Counts are elements, on the host. Every call takes a stream: on a CPU the
//   call is finished when it returns, on a GPU it is queued. Its buffers belong to it until it is finished (even if it
//   throws).
//   Reductions add in rank order, starting with rank 0's value: bf16 is summed in float and rounded once, other types
//   are summed in their own type (integers wrap). So all implementations agree bit for bit. A maximum with a NaN is
//   NaN.
//   Every wait ends: with RunError after the world's timeout, naming the missing ranks, or with PeerError when another
//   rank failed (weft/comm/world.h). If two ranks disagree on a count, a RunError names both ranks and both counts.
#pragma once

#include <atomic>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "weft/base/ids.h"
#include "weft/device/device.h"
#include "weft/device/reduction.h"
#include "weft/device/tensor.h"

namespace weft {

enum class Operation : std::uint8_t {
  none,
  all_to_all,
  all_gather,
  reduce_scatter,
  all_reduce,
  broadcast,
  transfer,
  barrier,
  replay  // of recorded calls
};
std::string_view name_of(Operation operation);

using Counts = std::span<const std::int64_t>;  // one entry per member

// Half of a transfer between this rank and a peer; the peer has the other half.
struct Transfer {
  enum class Direction : std::uint8_t { send, receive };
  Direction direction = Direction::send;
  int peer = 0;
  Tensor data;
};

class Communicator {
 public:
  virtual ~Communicator() = default;
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  int rank() const { return rank_; }
  int size() const { return static_cast<int>(members_.size()); }
  const std::string& name() const { return name_; }
  std::span<const RankId> members() const { return members_; }

  // Peer p gets send_counts[p] elements of `send`, packed in peer order; `receive` is packed the same way. Tensors may
  // be larger than the sum of their counts, and must not overlap.
  void all_to_all(Stream& stream, const Tensor& send, Counts send_counts, const Tensor& receive, Counts receive_counts);
  // Why a device cannot record calls as part of a graph and replay them; "" if it can, because they only queue work.
  virtual std::string why_not_recordable() const { return "ranks wait for each other on the host"; }
  // While it is on, calls are being recorded (Device::capture) and do not run: nothing watches them.
  virtual void set_recording(bool) {}
  // Around the launch of a graph that holds recorded calls, so that a wait without end is noticed.
  virtual void begin_replay(Stream&) {}
  virtual void end_replay(Stream&) {}
  // receive = every member's `send`, in the order of members. `send` may be this rank's part of `receive`.
  void all_gather(Stream& stream, const Tensor& send, const Tensor& receive);
  // The same with counts[p] elements from member p; all members pass the same counts.
  void all_gather(Stream& stream, const Tensor& send, const Tensor& receive, Counts counts);
  // receive [count] = this rank's part of the reduction of send [size * count]; may be this rank's part of `send`.
  void reduce_scatter(Stream& stream, const Tensor& send, const Tensor& receive, Reduction reduction);
  // `receive` may be `send`.
  void all_reduce(Stream& stream, const Tensor& send, const Tensor& receive, Reduction reduction);
  void broadcast(Stream& stream, const Tensor& data, int root);
  // All at once, so that two ranks may send to each other. Several between two ranks match in the order given.
  void transfer(Stream& stream, std::span<const Transfer> transfers);
  void send(Stream& stream, const Tensor& data, int peer);
  void receive(Stream& stream, const Tensor& data, int peer);
  // Returns when every member has called it (on a GPU too).
  void barrier(Stream& stream);

  // For reports, from any thread: the operation this rank is in, if any, and the number of calls so far.
  Operation operation() const { return operation_.load(std::memory_order_relaxed); }
  std::uint64_t calls() const { return calls_.load(std::memory_order_relaxed); }
  std::string call_text() const;  // "all_gather (call 12) of group 'dp'"

 protected:
  Communicator(std::span<const RankId> members, int rank, std::string name);
  RankId world_rank(int peer) const { return members_[static_cast<std::size_t>(peer)]; }
  std::string member_text(int peer) const;  // "rank 3"
  // The error when sender and receiver disagree on a count.
  std::string count_mismatch(int sender, std::int64_t sent, int receiver, std::int64_t expected) const;

 private:
  class Call;

  // Arguments are already checked. Pointers may be null where counts are zero.
  virtual void do_all_to_all(Stream& stream, DType dtype, const std::byte* send, Counts send_counts, std::byte* receive,
                             Counts receive_counts) = 0;
  virtual void do_all_gather(Stream& stream, DType dtype, const std::byte* send, std::byte* receive, Counts counts) = 0;
  virtual void do_reduce_scatter(Stream& stream, DType dtype, const std::byte* send, std::byte* receive,
                                 std::int64_t count, Reduction reduction) = 0;
  virtual void do_all_reduce(Stream& stream, DType dtype, const std::byte* send, std::byte* receive, std::int64_t count,
                             Reduction reduction) = 0;
  virtual void do_broadcast(Stream& stream, DType dtype, std::byte* data, std::int64_t count, int root) = 0;
  virtual void do_transfer(Stream& stream, std::span<const Transfer> transfers) = 0;
  virtual void do_barrier(Stream& stream) = 0;

  std::vector<RankId> members_;
  int rank_;
  std::string name_;
  std::vector<std::int64_t> even_;  // counts of an even all_gather
  std::atomic<Operation> operation_{Operation::none};
  std::atomic<std::uint64_t> calls_{0};
};

// Checks that `members` is a valid group, with `self`, of a world of `size` ranks. Returns the index of `self`.
int index_in_group(std::span<const RankId> members, RankId self, int size, const std::string& name);

}  // namespace weft
