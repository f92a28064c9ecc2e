// One rank's part in the run as a whole, for ranks that are processes: the first failure, which ends every wait of every
// rank; questions where the others stand; goodbyes. How words reach the others is the transport's (mpi/, tcp/).
#pragma once

#include <atomic>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "weft/base/ids.h"
#include "weft/comm/standing.h"
#include "weft/comm/world.h"

namespace weft {

class Control {
 public:
  virtual ~Control() = default;
  Control(const Control&) = delete;
  Control& operator=(const Control&) = delete;

  int rank() const { return rank_; }
  int size() const { return size_; }
  Standing& standing() { return standing_; }
  double timeout() const { return timeout_.load(); }  // of this rank's waits, in seconds
  void set_timeout(double seconds) { timeout_.store(seconds); }

  const std::atomic<bool>& ended() const { return ended_; }
  void throw_if_ended() const;
  // This rank failed: true, and told to all, if the run had not ended before.
  bool fail(const std::string& message);
  static constexpr double answer_seconds = 1;  // for the other ranks to say where they stand
  // Where every rank stands; empty for those that do not answer in time.
  std::vector<std::string> ask_standings(double seconds);
  // Tells all ranks that this one is finished and waits until all are, or the run ends, however long that takes: one that
  // writes a model must not be left (a launcher stops everybody when a rank leaves early). After a failure: until all
  // are, or the time is up. True if all are.
  bool say_goodbye(double seconds_after_failure);

 protected:
  Control(int rank, int size);

  enum class Word : int { failure = 1, loss, question, answer, goodbye };
  static constexpr std::size_t longest_text = 64 * 1024;
  // Brings a word to a peer soon. From any thread; does not wait.
  virtual void tell(int peer, Word word, std::shared_ptr<const std::string> text) = 0;
  // The run has just ended: waits are to look.
  virtual void wake_waits() {}

  // What a peer told. One thread at a time.
  void hear(int peer, Word word, const std::string& text);
  // A peer's connection broke, for this reason: the end of the run, unless the peer was finished.
  void lose(int peer, const std::string& why);
  // A failure with a last line about where this rank stood; the second time it ends the process at once.
  void note_sigterm();

 private:
  bool end(PeerError failure);  // true for the first
  void tell_others(Word word, const std::string& text);

  int rank_, size_;
  Standing standing_;
  std::atomic<double> timeout_{600};
  std::atomic<bool> ended_{false};
  std::atomic<bool> told_to_stop_{false};
  mutable std::mutex mutex_;  // of all below; never held while telling
  std::condition_variable changed_;
  std::optional<PeerError> failure_;
  std::vector<std::optional<std::string>> answers_;
  std::vector<bool> gone_;  // ranks that said goodbye, or from which nothing can come any more
};

}  // namespace weft
