// A member's end of a LocalGroup.
#pragma once

#include <memory>
#include <vector>

#include "weft/comm/communicator.h"
#include "weft/comm/local/state.h"

namespace weft {

class LocalCommunicator : public Communicator {
 public:
  LocalCommunicator(std::shared_ptr<LocalState> state, std::shared_ptr<LocalGroup> group,
                    std::span<const RankId> members, int rank, const std::string& name, Device* device);
  ~LocalCommunicator() override;

 private:
  class Reading;

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

  // A collective: a barrier, a check that all members made the same call, copy(), and a second barrier, after which no
  // peer reads our buffers. sends_here(p): whether the emulated network waits for p's link. Bytes are those sent to and
  // received from other members.
  template <class Copy, class SendsHere>
  void collective(Stream& stream, const CallArguments& mine, std::int64_t bytes_out, std::int64_t bytes_in,
                  const Copy& copy, const SendsHere& sends_here);
  void check_arguments() const;
  void arrive_and_wait();  // a barrier of the members
  // The same for queued work: records one of this member's events, waits for the barrier, and makes the stream wait for
  // the others' events.
  using Point = std::unique_ptr<Event> LocalGroup::Member::*;
  void arrive_and_wait_at(Stream& stream, Point point);
  void copy_bytes(Stream& stream, std::byte* to, const std::byte* from, std::int64_t bytes);
  void reduce(Stream& stream, Reduction reduction, DType dtype, std::byte* out, std::int64_t count);  // reduces inputs_
  // Waits until ready(). After the timeout it ends the run with a report, for which missing() gives the missing
  // members.
  template <class Ready, class Missing>
  void wait(const Ready& ready, const Missing& missing);
  // Called before an exception leaves a call: ends the run and waits until no peer reads this rank's memory.
  void leave_by_failure(const char* message);
  void take_transfers(Stream& stream, std::span<const Transfer> transfers, Nanoseconds& done_at,
                      std::int64_t& bytes_in);

  const CallArguments& arguments(int peer) const { return group_->members[static_cast<std::size_t>(peer)].arguments; }
  RankId self() const { return world_rank(rank()); }

  std::shared_ptr<LocalState> state_;
  std::shared_ptr<LocalGroup> group_;
  Device* device_;  // null for host memory, where a copy is done when its call returns
  Link* link_;
  std::uint64_t barriers_ = 0;
  std::uint64_t collectives_ = 0;
  std::vector<const std::byte*> inputs_;      // of reductions
  std::unique_ptr<LocalMessage[]> messages_;  // of transfers: grows to the largest batch
  std::size_t message_capacity_ = 0;
};

}  // namespace weft
