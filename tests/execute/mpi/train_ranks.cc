// Runs the configurations of bitwise_cases.h as one rank of an MPI world, woven and delayed, and prints their bits.
#include <cstdio>
#include <fstream>

#include "tests/execute/bitwise_cases.h"
#include "weft/base/error.h"
#include "weft/comm/launch.h"
#include "weft/comm/mpi_world.h"

int main(int argc, char** argv) {
  using namespace weft;
  try {
    const Launch launch = find_launch(process_environment());
    const std::unique_ptr<World> world = make_mpi_world(launch);
    world->set_timeout(60);
    if (argc != 2) throw UserError("usage: train_ranks FILE  (rank r writes FILE.r)");
    std::ofstream out(fmt::format("{}.{}", argv[1], launch.rank));
    for (NamedCase& c : bitwise_cases(launch.size)) {
      c.run.weave = c.run.delay = c.run.parallel = true;
      for (const std::string& line : lines_of(c.name, run_rank(c.run, world.get()))) out << line << '\n';
    }
    out.close();
    if (!out) throw RunError("{}.{} cannot be written", argv[1], launch.rank);
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "train_ranks: %s\n", error.what());
    return 1;
  }
}
