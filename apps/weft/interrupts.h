// Ctrl-C, and SIGTERM: a command leaves no temporary files behind.
#pragma once

#include <csignal>
#include <thread>

namespace weft {

// While it lives, SIGINT and SIGTERM first remove the temporary files and folders of the process (temporary_path.h), and
// then end it as usual: a shell shows 130 or 143. A signal that the process ignores stays ignored. Made before
// other threads start, so that they leave the signals to the thread that this starts.
class Interrupts {
 public:
  Interrupts();
  ~Interrupts();
  Interrupts(const Interrupts&) = delete;
  Interrupts& operator=(const Interrupts&) = delete;

 private:
  void wait_for_one();

  sigset_t signals_, before_;
  int arrived_, stop_;  // descriptors: a signalfd, an eventfd
  std::thread thread_;
};

}  // namespace weft
