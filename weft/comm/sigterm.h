// Who answers SIGTERM, which launchers send to every rank when one of them dies.
#pragma once

#include <signal.h>

namespace weft {

// Whoever joins a world of processes says it. watch: the world, as a failure of this rank, unless the program has a handler
// of its own. leave: the program, whatever it does about it; the world never takes the signal.
enum class Sigterm : unsigned char { watch, leave };

// With `watch`, blocks SIGTERM for this thread and the threads it starts, so that the control thread can receive it. Does
// nothing if the program has a handler of its own.
class SigtermBlock {
 public:
  explicit SigtermBlock(Sigterm wanted);
  ~SigtermBlock();
  SigtermBlock(const SigtermBlock&) = delete;
  SigtermBlock& operator=(const SigtermBlock&) = delete;
  // What the control thread does: it watches only while the signal is blocked here.
  Sigterm control() const { return blocked_ ? Sigterm::watch : Sigterm::leave; }

 private:
  bool blocked_ = false;
  sigset_t before_{};
};

}  // namespace weft
