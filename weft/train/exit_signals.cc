#include "weft/train/exit_signals.h"

#include <algorithm>
#include <ctime>

namespace weft {
namespace {

// Takes all that have arrived: the last by number, or 0.
int drain(const sigset_t& signals) {
  const timespec at_once{};
  int last = 0;
  for (int signal; (signal = sigtimedwait(&signals, nullptr, &at_once)) > 0;) last = std::max(last, signal);
  return last;
}

}  // namespace

ExitSignals::ExitSignals() {
  sigemptyset(&signals_);
  sigaddset(&signals_, SIGTERM);
  sigaddset(&signals_, SIGINT);
  pthread_sigmask(SIG_BLOCK, &signals_, &before_);
}

ExitSignals::~ExitSignals() {
  drain(signals_);
  pthread_sigmask(SIG_SETMASK, &before_, nullptr);
}

int ExitSignals::take() const {
  const int signal = drain(signals_);
  if (signal != 0) pthread_sigmask(SIG_UNBLOCK, &signals_, nullptr);
  return signal;
}

}  // namespace weft
