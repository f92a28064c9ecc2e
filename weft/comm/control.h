// The control channel of a run whose ranks are processes, as one rank sees it: the first failure, which ends every wait
// of every rank; questions about what the others are doing; goodbyes. The transports (mpi/, tcp/) deliver the messages.
#pragma once

#include <atomic>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "weft/base/ids.h"
#include "weft/comm/activity.h"
#include "weft/comm/world.h"

namespace weft {

class Control {
 public:
  virtual ~Control() = default;
  Control(const Control&) = delete;
  Control& operator=(const Control&) = delete;

  int rank() const { return rank_; }
  int size() const { return size_; }
  Activity& activity() { return activity_; }
  double timeout() const { return timeout_.load(); }  // of this rank's waits, in seconds
  void set_timeout(double seconds) { timeout_.store(seconds); }

  const std::atomic<bool>& ended() const { return ended_; }
  void throw_if_ended() const;
  // This rank failed. Returns true, and tells all ranks, if the run had not ended yet.
  bool fail(const std::string& message);
  static constexpr double answer_seconds = 1;  // for the other ranks to answer ask_activities
  // What every rank is doing; empty for ranks that do not answer in time.
  std::vector<std::string> ask_activities(double seconds);
  // Tells all ranks that this one is finished, and waits without a limit until all are finished or the run ends: a rank
  // that still writes a model must not be left alone, since a launcher stops every rank when one exits early. After a
  // failure it waits at most this long. True if all are finished.
  bool say_goodbye(double seconds_after_failure);

 protected:
  Control(int rank, int size);

  enum class Message : int { failure = 1, loss, question, answer, goodbye };
  static constexpr std::size_t longest_text = 64 * 1024;
  // Delivers a message to a peer soon. Called from any thread; does not wait.
  virtual void send(int peer, Message message, std::shared_ptr<const std::string> text) = 0;
  // The run has just ended: wakes all waits so that they notice.
  virtual void wake_waits() {}

  // Handles a message from a peer. Called by one thread at a time.
  void handle(int peer, Message message, const std::string& text);
  // A peer's connection broke, for this reason. Ends the run, unless the peer was finished.
  void handle_loss(int peer, const std::string& why);
  // Fails the run with a last line about what this rank was doing; the second time it ends the process at once.
  void note_sigterm();

 private:
  bool end(PeerError failure);  // true for the first
  void send_to_others(Message message, const std::string& text);

  int rank_, size_;
  Activity activity_;
  std::atomic<double> timeout_{600};
  std::atomic<bool> ended_{false};
  std::atomic<bool> got_sigterm_{false};
  mutable std::mutex mutex_;  // guards everything below; never held while sending
  std::condition_variable changed_;
  std::optional<PeerError> failure_;
  std::vector<std::optional<std::string>> answers_;
  std::vector<bool> gone_;  // ranks that said goodbye, or whose connection is lost
};

}  // namespace weft
