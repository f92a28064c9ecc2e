#include "tests/comm/rank_processes.h"

#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <stdexcept>
#include <string_view>
#include <thread>

#include <arpa/inet.h>
#include <netinet/in.h>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

namespace weft {

namespace {

using Clock = std::chrono::steady_clock;
constexpr double longest = 60;  // seconds that anything here may take

double seconds_since(Clock::time_point begin) { return std::chrono::duration<double>(Clock::now() - begin).count(); }

bool from_a_launcher(std::string_view entry) {
  for (const char* prefix : {"RANK=", "WORLD_SIZE=", "LOCAL_RANK=", "LOCAL_WORLD_SIZE=", "MASTER_", "TORCHELASTIC_",
                             "SLURM_", "OMPI_", "PMI", "WEFT_MASTER_"})
    if (entry.starts_with(prefix)) return true;
  return false;
}

std::string text_of(std::FILE* file) {
  std::string text;
  std::rewind(file);
  char part[4096];
  for (std::size_t n; (n = std::fread(part, 1, sizeof part, file)) > 0;) text.append(part, n);
  return text;
}

}  // namespace

RankProcesses::~RankProcesses() {
  for (Process& process : processes_) {
    if (process.running) {
      ::kill(process.id, SIGKILL);
      ::waitpid(process.id, nullptr, 0);
    }
    if (process.output != nullptr) std::fclose(process.output);
  }
}

void RankProcesses::start(const std::vector<std::string>& words, const Variables& variables) {
  std::vector<std::string> entries;
  for (char** entry = ::environ; *entry != nullptr; ++entry)
    if (!from_a_launcher(*entry)) entries.emplace_back(*entry);
  for (const auto& [name, value] : variables) entries.push_back(name + "=" + value);
  std::vector<char*> arguments, environment;
  for (const std::string& word : words) arguments.push_back(const_cast<char*>(word.c_str()));
  for (const std::string& entry : entries) environment.push_back(const_cast<char*>(entry.c_str()));
  arguments.push_back(nullptr);
  environment.push_back(nullptr);

  Process process;
  process.output = std::tmpfile();
  if (process.output == nullptr) throw std::runtime_error("no temporary file");
  posix_spawn_file_actions_t actions;
  ::posix_spawn_file_actions_init(&actions);
  ::posix_spawn_file_actions_adddup2(&actions, ::fileno(process.output), STDOUT_FILENO);
  ::posix_spawn_file_actions_adddup2(&actions, ::fileno(process.output), STDERR_FILENO);
  const int failure =
      ::posix_spawn(&process.id, words[0].c_str(), &actions, nullptr, arguments.data(), environment.data());
  ::posix_spawn_file_actions_destroy(&actions);
  if (failure != 0) throw std::runtime_error("cannot start " + words[0] + ": " + std::strerror(failure));
  processes_.push_back(process);
}

void RankProcesses::kill(std::size_t which) {
  ::kill(processes_[which].id, SIGKILL);
  ::waitpid(processes_[which].id, nullptr, 0);
  processes_[which].running = false;
  processes_[which].ended.code = 128 + SIGKILL;
}

void RankProcesses::signal(std::size_t which, int number) {
  if (processes_[which].running) ::kill(processes_[which].id, number);
}

std::vector<EndedProcess> RankProcesses::wait(double grace) {
  const auto begin = Clock::now();
  double until = longest;
  for (bool running = true; running;) {
    running = false;
    for (Process& process : processes_) {
      if (!process.running) continue;
      running = true;
      int status = 0;
      if (seconds_since(begin) > until) ::kill(process.id, SIGKILL);
      if (::waitpid(process.id, &status, WNOHANG) == 0) continue;
      process.running = false;
      process.ended.code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
      process.ended.seconds = seconds_since(begin);
      if (process.ended.code != 0) until = std::min(until, process.ended.seconds + grace);
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  std::vector<EndedProcess> all;
  for (Process& process : processes_) {
    process.ended.output = text_of(process.output);
    all.push_back(process.ended);
  }
  return all;
}

int free_port() {
  const int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof(address);
  const bool found = ::bind(fd, reinterpret_cast<sockaddr*>(&address), length) == 0 &&
                     ::getsockname(fd, reinterpret_cast<sockaddr*>(&address), &length) == 0;
  ::close(fd);
  if (!found) throw std::runtime_error("no free port");
  return ntohs(address.sin_port);
}

Variables torchrun_variables(int rank, int size, int port) {
  return {{"RANK", std::to_string(rank)},       {"WORLD_SIZE", std::to_string(size)},
          {"LOCAL_RANK", std::to_string(rank)}, {"LOCAL_WORLD_SIZE", std::to_string(size)},
          {"MASTER_ADDR", "127.0.0.1"},         {"MASTER_PORT", std::to_string(port)},
          {"TORCHELASTIC_RUN_ID", "test"},      {"TORCHELASTIC_USE_AGENT_STORE", "False"}};
}

std::vector<EndedProcess> run_on_ranks(int size, const std::vector<std::string>& words, double grace) {
  const int port = free_port();
  RankProcesses processes;
  for (int rank = 0; rank < size; ++rank) processes.start(words, torchrun_variables(rank, size, port));
  return processes.wait(grace);
}

}  // namespace weft
