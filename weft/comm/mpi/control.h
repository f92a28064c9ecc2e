// The control channel of a rank under MPI: a thread with a communicator of its own. It brings a failure to every rank,
// tells others where this rank stands, also while this rank computes or hangs, keeps MPI's transfers going, and turns
// SIGTERM (which mpirun sends to all ranks when one dies) into a failure with a last line about where this rank stood.
// A second SIGTERM ends the process at once.
#pragma once

#include <atomic>
#include <condition_variable>
#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "weft/base/ids.h"
#include "weft/comm/mpi/calls.h"
#include "weft/comm/standing.h"

namespace weft {

class MpiControl {
 public:
  enum class Sigterm : unsigned char { watch, leave };  // watch: it is blocked in every thread of the process
  MpiControl(MPI_Comm comm, int rank, int size, const Standing& standing, Sigterm sigterm);
  ~MpiControl();  // ends the thread

  const std::atomic<bool>& ended() const { return ended_; }
  void throw_if_ended() const;
  // This rank failed: true, and told to all, if the run had not ended before.
  bool fail(const std::string& message);
  // Where every rank stands; empty for those that do not answer in time.
  std::vector<std::string> ask_standings(double seconds);
  // Tells all ranks that this one is finished and waits until all are, or the time is up, or the run ends: true if all
  // are. After a failure it only waits for the time or for all.
  bool say_goodbye(double seconds);

 private:
  enum Tag : int { failure = 1, question, answer, goodbye };
  struct Outgoing {
    int peer;
    int tag;
    std::shared_ptr<const std::string> text;
    MPI_Request request = MPI_REQUEST_NULL;
  };

  void work();
  void post_receive();
  void read_messages();
  void handle(int peer, int tag, std::string text);
  void send_messages();
  void rest();
  void note_sigterm();
  void tell(int peer, int tag, std::shared_ptr<const std::string> text);  // by the thread, soon
  void tell_others(int tag, const std::string& text);

  MPI_Comm comm_;
  int rank_, size_;
  const Standing& standing_;
  Sigterm sigterm_;
  std::atomic<bool> ended_{false};
  std::atomic<bool> stop_{false};

  mutable std::mutex mutex_;  // of all until the blank line
  std::condition_variable changed_;
  std::optional<std::pair<RankId, std::string>> failure_;
  std::vector<std::optional<std::string>> answers_;
  std::vector<bool> gone_;  // ranks that said goodbye
  std::list<Outgoing> outgoing_;

  std::list<Outgoing> sending_;  // the thread's own, as all below
  std::vector<char> incoming_;
  MPI_Request receive_ = MPI_REQUEST_NULL;
  bool told_to_stop_ = false;
  std::thread thread_;
};

}  // namespace weft
