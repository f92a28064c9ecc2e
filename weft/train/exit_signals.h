// SIGTERM and SIGINT as something to ask for between steps.
#pragma once

#include <csignal>

namespace weft {

// While it lives, the two signals wait until they are asked for. Made before other threads start, so that they inherit
// that. A second signal, once the first has been taken, ends the process as usual.
class ExitSignals {
 public:
  ExitSignals();
  ~ExitSignals();
  ExitSignals(const ExitSignals&) = delete;
  ExitSignals& operator=(const ExitSignals&) = delete;

  // Takes a signal that has arrived: its number, or 0. From any thread.
  int take() const;

 private:
  sigset_t signals_, before_;
};

}  // namespace weft
