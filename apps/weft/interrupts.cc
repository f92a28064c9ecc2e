#include "apps/weft/interrupts.h"

#include <cerrno>
#include <cstdint>
#include <cstring>
#include <system_error>

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include "weft/base/error.h"
#include "weft/base/temporary_path.h"

namespace weft {

Interrupts::Interrupts() {
  sigemptyset(&signals_);
  sigaddset(&signals_, SIGINT);
  sigaddset(&signals_, SIGTERM);
  pthread_sigmask(SIG_BLOCK, &signals_, &before_);
  arrived_ = signalfd(-1, &signals_, SFD_CLOEXEC);
  stop_ = eventfd(0, EFD_CLOEXEC);
  WEFT_CHECK(arrived_ >= 0 && stop_ >= 0, "no descriptor for signals: {}", std::strerror(errno));
  try {
    thread_ = std::thread([this] { wait_for_one(); });
  } catch (const std::system_error&) {  // no thread is left for it: then a signal ends the process as usual
    pthread_sigmask(SIG_SETMASK, &before_, nullptr);
  }
}

Interrupts::~Interrupts() {
  const std::uint64_t one = 1;
  while (write(stop_, &one, sizeof(one)) < 0 && errno == EINTR) {
  }
  if (thread_.joinable()) thread_.join();  // if a signal has arrived, the process ends meanwhile
  close(arrived_);
  close(stop_);
  pthread_sigmask(SIG_SETMASK, &before_, nullptr);
}

void Interrupts::wait_for_one() {
  pollfd either[] = {{arrived_, POLLIN, 0}, {stop_, POLLIN, 0}};
  while (poll(either, 2, -1) < 0 && errno == EINTR) {
  }
  signalfd_siginfo info{};
  if (either[0].revents == 0 || read(arrived_, &info, sizeof(info)) != sizeof(info)) return;
  remove_temporary_paths();
  const int number = static_cast<int>(info.ssi_signo);
  std::signal(number, SIG_DFL);
  sigset_t only;
  sigemptyset(&only);
  sigaddset(&only, number);
  pthread_sigmask(SIG_UNBLOCK, &only, nullptr);
  std::raise(number);
}

}  // namespace weft
