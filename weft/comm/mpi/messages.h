// Messages over an MPI communicator: posted, then waited for by testing and sleeping.
#pragma once

#include <memory>

#include "weft/comm/messages.h"
#include "weft/comm/mpi/calls.h"
#include "weft/comm/mpi/control.h"

namespace weft {

class MpiMessages : public Messages {
 public:
  // Owns `comm`, in which peers are numbered.
  MpiMessages(std::shared_ptr<MpiControl> control, MPI_Comm comm);
  ~MpiMessages() override;

  void send(int peer, int tag, const std::byte* data, std::int64_t bytes) override;
  void receive(int peer, int tag, std::byte* data, std::int64_t bytes, std::int64_t width) override;
  Outcome wait(double seconds) override;
  std::vector<int> pending_peers() const override;
  const std::optional<Misfit>& misfit() const override { return misfit_; }
  // Receives that found no sender are cancelled; the others are on their way and complete, as every rank's control
  // thread keeps MPI going. Sends that found no receiver are left alone: MPI cannot cancel them, and nobody will ask for
  // their data.
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
  std::optional<Misfit> misfit_;
};

}  // namespace weft
