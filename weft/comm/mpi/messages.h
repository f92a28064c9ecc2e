// Messages over an MPI communicator: posted, then waited for by testing and sleeping.
#pragma once

#include <memory>

#include "weft/comm/messages.h"
#include "weft/comm/mpi/calls.h"
#include "weft/comm/mpi/control.h"

namespace weft {

class MpiMessages : public Messages {
 public:
  // Owns `comm`, whose ranks are the peers.
  MpiMessages(std::shared_ptr<MpiControl> control, MPI_Comm comm);
  ~MpiMessages() override;

  void send(int peer, int tag, const std::byte* data, std::int64_t bytes) override;
  void receive(int peer, int tag, std::byte* data, std::int64_t bytes, std::int64_t width) override;
  Outcome wait(double seconds) override;
  std::vector<int> pending_peers() const override;
  const std::optional<Mismatch>& mismatch() const override { return mismatch_; }
  // Cancels receives without a matching send; the others are in progress and complete, since every rank's control
  // thread keeps MPI going. Sends without a matching receive are left alone: MPI cannot cancel them, and no rank will
  // ask for their data.
  void abandon() override;

 private:
  struct Message {
    int peer;
    bool receive;
    std::int64_t bytes, width;
  };
  bool test();  // true when all are complete

  std::shared_ptr<MpiControl> control_;
  MPI_Comm comm_;
  std::vector<MPI_Request> requests_;
  std::vector<Message> messages_;
  std::vector<int> indices_;
  std::vector<MPI_Status> statuses_;
  std::optional<Mismatch> mismatch_;
};

}  // namespace weft
