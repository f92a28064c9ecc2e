// A member's end of a group over GPU memory. Every operation consists of pairwise sends and receives, queued as one
// NCCL group, and of the device's own copies and sums. So reductions add in rank order, as in all communicators, and
// give the same bits with every NCCL version, interconnect and number of channels.
//
// Threads of one process that share a GPU also share its context, where a kernel that waits for another rank's is
// dangerous: allocating, freeing and loading code wait for it, and other kernels may be stuck after it in the hardware
// queues. So these threads synchronize on the host before and after every round: when the first kernel starts to wait,
// everything the other kernels depend on is already queued, and nothing that depends on it is. Transfers, which do not
// involve all members, are left to the base, which moves GPU memory between threads itself.
#pragma once

#include <memory>
#include <vector>

#include "weft/comm/communicator.h"
#include "weft/comm/nccl/setup.h"
#include "weft/comm/nccl/watchdog.h"

namespace weft::nccl {

class NcclCommunicator : public Communicator {
 public:
  // host: the base's group of the same members. setup: empty for a group of one. thread_group: the base's group over
  // the device's memory if members are threads that share a GPU; null otherwise.
  NcclCommunicator(std::shared_ptr<Watchdog> watchdog, std::unique_ptr<Communicator> host, Setup setup,
                   std::unique_ptr<Communicator> thread_group, Device& device);
  // Waits until the queued work is done or the run has ended.
  ~NcclCommunicator() override;

  // Collective, once, before any other call: connects all pairs, so that later calls only queue, and returns when all
  // members are connected. memory: two bytes of device memory per member.
  void connect(Stream& stream, std::byte* memory);

  std::string why_not_recordable() const override { return thread_group_ ? "ranks that are threads share a GPU" : ""; }
  void set_recording(bool on) override { recording_ = on; }
  void begin_replay(Stream& stream) override;
  void end_replay(Stream& stream) override;

 private:
  void do_all_to_all(Stream& stream, DType dtype, const std::byte* send, Counts send_counts, std::byte* receive,
                     Counts receive_counts) override;
  void do_all_gather(Stream& stream, DType dtype, const std::byte* send, std::byte* receive, Counts counts) override;
  void do_reduce_scatter(Stream& stream, DType dtype, const std::byte* send, std::byte* receive, std::int64_t count,
                         Reduction reduction) override;
  void do_all_reduce(Stream& stream, DType dtype, const std::byte* send, std::byte* receive, std::int64_t count,
                     Reduction reduction) override;
  void do_broadcast(Stream& stream, DType dtype, std::byte* data, std::int64_t count, int root) override;
  void do_transfer(Stream& stream, std::span<const Transfer> transfers) override;
  void do_barrier(Stream& stream) override;

  struct Out {
    const std::byte* data = nullptr;
    std::int64_t bytes = 0;
  };
  struct In {
    std::byte* data = nullptr;
    std::int64_t bytes = 0;
  };

  // Runs body(), which queues a collective, between two events that the watchdog checks. waits_for(peer): whether the
  // collective waits for that member.
  template <class WaitsFor, class Body>
  void queue(Stream& stream, const WaitsFor& waits_for, const Body& body);
  // Queues the sends and receives that fill(Exchange&) adds.
  template <class Fill>
  void exchange(Stream& stream, const Fill& fill);
  // A round of all members: send_part(peer) is sent to every other one, and receive_part(peer) received from it.
  template <class SendPart, class ReceivePart>
  void round(Stream& stream, const SendPart& send_part, const ReceivePart& receive_part);
  void barrier_if_shared();  // on the host, if threads share a GPU
  void copy(Stream& stream, std::byte* to, const Out& from);
  // out = this rank's part of the reduction of all members' `send`, whose part p is [begin_of(p), begin_of(p + 1)).
  // Takes as many rounds as the scratch memory needs. `out` may be this rank's part of `send`.
  template <class BeginOf>
  void reduce_parts(Stream& stream, DType dtype, const std::byte* send, const BeginOf& begin_of, std::byte* out,
                    Reduction reduction);
  // out = the reduction of `own` and the other members' parts in their slots.
  void reduce_slots(Stream& stream, DType dtype, const std::byte* own, std::byte* out, std::int64_t count,
                    Reduction reduction);
  std::byte* slot(int peer) const;  // the peer's part in scratch
  std::int64_t slot_bytes() const;

  std::shared_ptr<Watchdog> watchdog_;
  std::unique_ptr<Communicator> host_;
  std::shared_ptr<CommHandle> handle_;
  std::unique_ptr<Communicator> thread_group_;
  Device& device_;
  std::unique_ptr<Memory> scratch_;  // for reductions
  std::vector<const std::byte*> inputs_;
  std::vector<RankId> waits_for_;
  bool recording_ = false;
};

}  // namespace weft::nccl
