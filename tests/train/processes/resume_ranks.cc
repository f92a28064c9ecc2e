// Runs the cases of resumed_runs.h as one rank of a launcher, saves and resumes them, and prints what the first rank sees.
#include <cstdio>

#include "tests/train/resumed_runs.h"
#include "weft/base/error.h"
#include "weft/comm/launch.h"
#include "weft/comm/mpi_world.h"
#include "weft/comm/tcp_world.h"

int main(int argc, char** argv) {
  using namespace weft;
  try {
    if (argc != 2) throw UserError("usage: resume_ranks FOLDER");
    const Launch launch = find_launch(process_environment());
    const std::unique_ptr<World> world =
        launch.mpi ? make_mpi_world(launch) : make_tcp_world(launch, process_environment());
    world->set_timeout(60);
    int number = 0;
    for (const ResumedCase& c : resumed_cases(launch.size))
      for (const std::string& line :
           resumed_lines(c, world.get(), std::filesystem::path(argv[1]) / std::to_string(number++)))
        if (launch.rank == 0) std::puts(line.c_str());
    return std::fflush(stdout) == 0 ? 0 : 1;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "resume_ranks: %s\n", error.what());
    return 1;
  }
}
