// The control channel of a rank under MPI: a thread with an MPI communicator of its own. It brings a failure to every
// rank, tells others what this rank is doing even while it computes or hangs, keeps MPI's transfers going, and turns
// SIGTERM (which mpirun sends to all ranks when one dies) into a failure with a last line about what this rank was
// doing. A second SIGTERM ends the process at once.
#pragma once

#include <atomic>
#include <list>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "weft/comm/control.h"
#include "weft/comm/mpi/calls.h"
#include "weft/comm/sigterm.h"

namespace weft {

class MpiControl : public Control {
 public:
  // sigterm: watch only where the signal is blocked in every thread of the process.
  MpiControl(MPI_Comm comm, int rank, int size, Sigterm sigterm);
  ~MpiControl() override;  // ends the thread

  // MPI is being finalized, or has been: nothing may be freed any more.
  bool finalized() const { return finalized_.load(); }
  void set_finalized() { finalized_.store(true); }

 private:
  struct Outgoing {
    int peer;
    Message kind;
    std::shared_ptr<const std::string> text;
    MPI_Request request = MPI_REQUEST_NULL;
  };

  void send(int peer, Message message, std::shared_ptr<const std::string> text) override;
  void work();
  void post_receive();
  void read_messages();
  void send_messages();
  void pause();

  MPI_Comm comm_;
  Sigterm sigterm_;
  std::atomic<bool> stop_{false};
  std::atomic<bool> finalized_{false};
  std::mutex mutex_;
  std::list<Outgoing> outgoing_;  // guarded by the mutex

  std::list<Outgoing> sending_;  // used by the thread alone, as everything below
  std::vector<char> incoming_;
  MPI_Request receive_ = MPI_REQUEST_NULL;
  std::thread thread_;
};

}  // namespace weft
