#include "tests/apps/weft_process.h"

#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <memory>
#include <stdexcept>
#include <thread>

#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

namespace weft {
namespace {

using File = std::unique_ptr<std::FILE, int (*)(std::FILE*)>;

File scratch_file() { return {std::tmpfile(), std::fclose}; }

std::string text_of(std::FILE* file) {
  std::string text;
  std::rewind(file);
  char part[4096];
  for (std::size_t n; (n = std::fread(part, 1, sizeof part, file)) > 0;) text.append(part, n);
  return text;
}

int wait_for(pid_t child, std::chrono::seconds patience, const std::function<bool()>& ready, int signal) {
  const auto deadline = std::chrono::steady_clock::now() + patience;
  int status = 0;
  bool sent = !ready;
  while (::waitpid(child, &status, WNOHANG) == 0) {
    if (!sent && ready()) sent = ::kill(child, signal) == 0;
    if (std::chrono::steady_clock::now() > deadline) {
      ::kill(child, SIGKILL);
      ::waitpid(child, &status, 0);
      break;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

}  // namespace

Words operator+(Words first, const Words& second) {
  first.insert(first.end(), second.begin(), second.end());
  return first;
}

Outcome run_weft_until(const Words& words, const std::function<bool()>& ready, int signal) {
  const std::string program = WEFT_BINARY_DIR "/weft";
  std::vector<char*> arguments = {const_cast<char*>(program.c_str())};
  for (const std::string& word : words) arguments.push_back(const_cast<char*>(word.c_str()));
  arguments.push_back(nullptr);

  // Files and not pipes: nothing has to be read while it runs.
  const File out = scratch_file(), err = scratch_file();
  posix_spawn_file_actions_t actions;
  ::posix_spawn_file_actions_init(&actions);
  ::posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", 0, 0);
  ::posix_spawn_file_actions_adddup2(&actions, ::fileno(out.get()), STDOUT_FILENO);
  ::posix_spawn_file_actions_adddup2(&actions, ::fileno(err.get()), STDERR_FILENO);
  pid_t child = 0;
  const int failure = ::posix_spawn(&child, program.c_str(), &actions, nullptr, arguments.data(), ::environ);
  ::posix_spawn_file_actions_destroy(&actions);
  if (failure != 0) throw std::runtime_error("cannot start " + program + ": " + std::strerror(failure));
  Outcome outcome;
  outcome.code = wait_for(child, std::chrono::minutes(1), ready, signal);
  outcome.out = text_of(out.get());
  outcome.err = text_of(err.get());
  return outcome;
}

Outcome run_weft(const Words& words) { return run_weft_until(words, {}, 0); }

namespace {

std::string shown(const Words& words) {
  std::string text = "weft";
  for (const std::string& word : words) text += " '" + word + "'";
  return text;
}

}  // namespace

void expect_refused(const Words& words, std::initializer_list<std::string> parts) {
  SCOPED_TRACE(shown(words));
  const Outcome outcome = run_weft(words);
  EXPECT_EQ(outcome.code, 2) << outcome.err;
  EXPECT_EQ(outcome.out, "");
  EXPECT_THAT(outcome.err, ::testing::StartsWith("weft: "));
  EXPECT_THAT(outcome.err, ::testing::EndsWith("\n"));
  for (const std::string& part : parts) EXPECT_THAT(outcome.err, ::testing::HasSubstr(part));
}

std::string expect_done(const Words& words) {
  SCOPED_TRACE(shown(words));
  const Outcome outcome = run_weft(words);
  EXPECT_EQ(outcome.code, 0);
  EXPECT_EQ(outcome.err, "");
  return outcome.out;
}

std::string golden(const std::string& path) { return WEFT_SOURCE_DIR "/tests/golden/" + path; }

}  // namespace weft
