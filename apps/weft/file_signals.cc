#include "apps/weft/file_signals.h"

#include <csignal>
#include <cstdint>
#include <cstring>

#include <fcntl.h>
#include <unistd.h>

namespace weft {
namespace {

// All of this runs in a signal handler: it takes no memory and calls nothing but system calls and functions on strings.

void say(const char* text) {
  if (::write(STDERR_FILENO, text, std::strlen(text)) < 0) return;  // nobody is listening
}

// A line of /proc/self/maps: "7f1c04000000-7f1c04021000 r--s 00000000 fe:00 1234   /data/a file.bin". The path of the mapping
// that holds the address, or null.
const char* file_in(const char* line, std::uintptr_t address) {
  const auto number = [&line] {
    std::uintptr_t value = 0;
    for (;; ++line) {
      const char c = *line;
      if (c >= '0' && c <= '9')
        value = 16 * value + static_cast<std::uintptr_t>(c - '0');
      else if (c >= 'a' && c <= 'f')
        value = 16 * value + static_cast<std::uintptr_t>(c - 'a' + 10);
      else
        return value;
    }
  };
  const std::uintptr_t begin = number();
  if (*line++ != '-') return nullptr;
  const std::uintptr_t end = number();
  return address >= begin && address < end ? std::strchr(line, '/') : nullptr;
}

void end_with_message(int signal, siginfo_t* info, void*) {
  const int maps = ::open("/proc/self/maps", O_RDONLY | O_CLOEXEC);
  char line[4096 + 128];
  std::size_t length = 0;
  for (char c = 0; maps >= 0 && ::read(maps, &c, 1) == 1;) {
    if (c != '\n') {
      if (length + 1 < sizeof line) line[length++] = c;
      continue;
    }
    line[length] = 0;
    length = 0;
    if (const char* const file = file_in(line, reinterpret_cast<std::uintptr_t>(info->si_addr))) {
      say("weft: cannot read ");
      say(file);
      say(": it has become shorter since it was opened, or its disk has failed; put it back as it was\n");
      ::_exit(1);
    }
  }
  std::signal(signal, SIG_DFL);  // the instruction runs again, and ends the process as if there were no handler
}

}  // namespace

void report_file_signals() {
  std::signal(SIGXFSZ, SIG_IGN);
  struct sigaction action {};
  action.sa_sigaction = end_with_message;
  action.sa_flags = SA_SIGINFO;
  sigaction(SIGBUS, &action, nullptr);
}

}  // namespace weft
