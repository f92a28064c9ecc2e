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

  // A collective: meet, check that all came for the same, copy(), meet again so that nobody reads our buffers any more.
  // sends_here(p) says whose links the emulated network waits for; bytes are those to and from others.
  template <class Copy, class SendsHere>
  void collective(Stream& stream, const Post& mine, std::int64_t bytes_out, std::int64_t bytes_in, const Copy& copy,
                  const SendsHere& sends_here);
  void check_posts() const;
  void meet();
  // The same where work is queued: records one of this member's events, meets, and lets the stream wait for the others'.
  using Point = std::unique_ptr<Event> LocalGroup::Member::*;
  void meet_at(Stream& stream, Point point);
  void copy_bytes(Stream& stream, std::byte* to, const std::byte* from, std::int64_t bytes);
  void reduce(Stream& stream, Reduction reduction, DType dtype, std::byte* out, std::int64_t count);  // of inputs_
  // Until ready(). Past the timeout it ends the run with a report, for which missing() names the members waited for.
  template <class Ready, class Missing>
  void wait(const Ready& ready, const Missing& missing);
  // Before an exception leaves a call: ends the run and waits until no one reads this rank's memory.
  void leave_by_failure(const char* message);
  void take_transfers(Stream& stream, std::span<const Transfer> transfers, Nanoseconds& through,
                      std::int64_t& bytes_in);

  const Post& post(int peer) const { return group_->members[static_cast<std::size_t>(peer)].post; }
  RankId self() const { return world_rank(rank()); }

  std::shared_ptr<LocalState> state_;
  std::shared_ptr<LocalGroup> group_;
  Device* device_;  // null: memory of the host, where a copy is done when its call returns
  Link* link_;
  std::uint64_t meetings_ = 0;
  std::uint64_t collectives_ = 0;
  std::vector<const std::byte*> inputs_;  // of reductions
  std::unique_ptr<Parcel[]> parcels_;     // of transfers: grows to the largest batch
  std::size_t parcel_capacity_ = 0;
};

}  // namespace weft
