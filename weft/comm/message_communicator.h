// A member's end of a group whose ranks are processes. Every operation is one or two rounds of pairwise messages, so
// that a wait knows which ranks it waits for, and reductions add in rank order with every transport.
#pragma once

#include <memory>
#include <vector>

#include "weft/comm/communicator.h"
#include "weft/comm/control.h"
#include "weft/comm/messages.h"

namespace weft {

class MessageCommunicator : public Communicator {
 public:
  // `messages` connects the members; its peers are numbered in their order.
  MessageCommunicator(std::shared_ptr<Control> control, std::unique_ptr<Messages> messages,
                      std::span<const RankId> members, int rank, const std::string& name);
  ~MessageCommunicator() override;

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

  // A round: every other member gets its part of `send`, and its part of `receive` is received from it.
  struct ByteRange {
    std::int64_t at = 0, bytes = 0;
  };
  template <class SendPart, class ReceivePart>
  void round(const std::byte* send, const SendPart& send_part, std::byte* receive, const ReceivePart& receive_part,
             DType dtype);
  void begin_round();
  void finish_round();  // waits, and checks the counts
  // out = the reduction of this rank's part (own) and the other members' parts, which are stored one after another in
  // scratch.
  void reduce_scratch(Reduction reduction, DType dtype, const std::byte* own, std::byte* out, std::int64_t count);
  std::byte* scratch(std::int64_t bytes);

  std::shared_ptr<Control> control_;
  std::unique_ptr<Messages> messages_;
  int tag_ = 0;
  std::uint64_t rounds_ = 0;
  std::vector<std::byte> scratch_;  // of reductions: grows to the largest
  std::vector<const std::byte*> inputs_;
};

}  // namespace weft
