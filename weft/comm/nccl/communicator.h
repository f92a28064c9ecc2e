// A member's end of a group over the memory of GPUs. Every operation is made of sends and receives between pairs, queued
// as one group of NCCL's, and of the device's own copies and sums: so reductions add in rank order, as everywhere, and
// give the same bits whatever NCCL's version, the machine's wires or the number of channels.
//
// Threads of one process that share a GPU share its context too, and there a kernel that waits for another rank's is
// dangerous: to allocate, to free, to load code waits for it, and other kernels may be stuck behind it in the queues of
// the hardware. So these meet on the host before and behind every round: when the first kernel starts to wait, all that
// the others depend on is queued already, and nothing that depends on it is. Transfers, in which not all take part, are
// left to the base, which moves GPU memory between threads itself.
#pragma once

#include <memory>
#include <vector>

#include "weft/comm/communicator.h"
#include "weft/comm/nccl/setup.h"
#include "weft/comm/nccl/watch.h"

namespace weft::nccl {

class NcclCommunicator : public Communicator {
 public:
  // host: the base's group of the same members. setup: empty for a group of one. side_by_side: the base's group over the
  // device's memory, where members are threads that share a GPU; null elsewhere.
  NcclCommunicator(std::shared_ptr<Watch> watch, std::unique_ptr<Communicator> host, Setup setup,
                   std::unique_ptr<Communicator> side_by_side, Device& device);
  // Waits until what is queued is done, or the run has ended.
  ~NcclCommunicator() override;

  // Collective, once, before any other call: connects all pairs, so that later calls only queue, and returns when all
  // members are. memory: two bytes of the device's for each member.
  void connect(Stream& stream, std::byte* memory);

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

  // Runs body(), which queues a collective, between two events that the watch looks at. meets(peer): whether it needs
  // that member to come.
  template <class Meets, class Body>
  void queue(Stream& stream, const Meets& meets, const Body& body);
  // Queues the sends and receives that fill(Exchange&) names.
  template <class Fill>
  void exchange(Stream& stream, const Fill& fill);
  // Of all members: send_part(peer) goes to every other one and receive_part(peer) comes from it.
  template <class SendPart, class ReceivePart>
  void round(Stream& stream, const SendPart& send_part, const ReceivePart& receive_part);
  void meet();
  void copy(Stream& stream, std::byte* to, const Out& from);
  // out = this rank's part of the sum of all members' `send`, whose part p is [begin_of(p), begin_of(p + 1)). As much at
  // a time as fits into the scratch memory. `out` may be this rank's part of `send`.
  template <class BeginOf>
  void reduce_parts(Stream& stream, DType dtype, const std::byte* send, const BeginOf& begin_of, std::byte* out,
                    Reduction reduction);
  // out = what `own` and the other members' parts in their slots reduce to.
  void reduce_slots(Stream& stream, DType dtype, const std::byte* own, std::byte* out, std::int64_t count,
                    Reduction reduction);
  std::byte* slot(int peer) const;  // in scratch, where the peer's part goes
  std::int64_t slot_bytes() const;

  std::shared_ptr<Watch> watch_;
  std::unique_ptr<Communicator> host_;
  std::shared_ptr<Link> link_;
  std::unique_ptr<Communicator> side_by_side_;
  Device& device_;
  std::unique_ptr<Memory> scratch_;  // of reductions
  std::vector<const std::byte*> inputs_;
  std::vector<RankId> waits_for_;
};

}  // namespace weft::nccl
