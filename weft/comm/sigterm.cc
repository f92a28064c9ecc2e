#include "weft/comm/sigterm.h"

namespace weft {

SigtermBlock::SigtermBlock(Sigterm wanted) {
  struct sigaction action {};
  if (wanted == Sigterm::leave || sigaction(SIGTERM, nullptr, &action) != 0 || action.sa_handler != SIG_DFL) return;
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGTERM);
  blocked_ = pthread_sigmask(SIG_BLOCK, &set, &before_) == 0;
}

SigtermBlock::~SigtermBlock() {
  if (blocked_) pthread_sigmask(SIG_SETMASK, &before_, nullptr);
}

}  // namespace weft
