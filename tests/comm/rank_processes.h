// Ranks as processes that a test starts itself, as a launcher would.
#pragma once

#include <map>
#include <string>
#include <vector>

#include <sys/types.h>

namespace weft {

using Variables = std::map<std::string, std::string>;

struct EndedProcess {
  int code = -1;  // 128 + N where a signal N ended it
  double seconds = 0;
  std::string output;  // both streams

  bool printed(const std::string& text) const { return output.find(text) != std::string::npos; }
};

class RankProcesses {
 public:
  RankProcesses() = default;
  ~RankProcesses();  // kills those that still run
  RankProcesses(const RankProcesses&) = delete;
  RankProcesses& operator=(const RankProcesses&) = delete;

  // With this process's environment, without variables of a launcher, plus these variables.
  void start(const std::vector<std::string>& words, const Variables& variables);
  void kill(std::size_t which);  // SIGKILL, and waits for its end
  void signal(std::size_t which, int number);
  // Until all have ended. After the first failure the others have `grace` seconds to end, then they are killed.
  std::vector<EndedProcess> wait(double grace = 5);

 private:
  struct Process {
    pid_t id = 0;
    std::FILE* output = nullptr;
    bool running = true;
    EndedProcess ended;
  };
  std::vector<Process> processes_;
};

// A free port of the loopback.
int free_port();
// The variables that torchrun sets for rank `rank` of `size` on one machine.
Variables torchrun_variables(int rank, int size, int port);
// The same program on all ranks.
std::vector<EndedProcess> run_on_ranks(int size, const std::vector<std::string>& words, double grace = 5);

}  // namespace weft
