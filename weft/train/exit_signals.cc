#include "weft/train/exit_signals.h"

#include <ctime>

namespace weft {

ExitSignals::ExitSignals() {
  sigemptyset(&signals_);
  sigaddset(&signals_, SIGTERM);
  sigaddset(&signals_, SIGINT);
  pthread_sigmask(SIG_BLOCK, &signals_, &before_);
}

ExitSignals::~ExitSignals() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }

int ExitSignals::take() const {
  const timespec at_once{};
  const int signal = sigtimedwait(&signals_, nullptr, &at_once);
  if (signal <= 0) return 0;
  pthread_sigmask(SIG_UNBLOCK, &signals_, nullptr);
  return signal;
}

}  // namespace weft
