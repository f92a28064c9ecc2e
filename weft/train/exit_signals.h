// SIGTERM and SIGINT as something to ask for between steps.
#pragma once

#include <csignal>

namespace weft {

// While it lives, the two signals wait until they are asked for; those that nobody has asked for in the end are dropped:
// the run may have ended for the signal that another rank got a moment before. Made before other threads start, so that they
// inherit that. A signal that arrives after one has been taken ends the process as usual.
class ExitSignals {
 public:
  ExitSignals();
  ~ExitSignals();
  ExitSignals(const ExitSignals&) = delete;
  ExitSignals& operator=(const ExitSignals&) = delete;

  // Takes the signals that have arrived, launchers may send both: the number of one, or 0. From any thread.
  int take() const;

 private:
  sigset_t signals_, before_;
};

}  // namespace weft
