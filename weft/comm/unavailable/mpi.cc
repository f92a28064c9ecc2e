#include "weft/base/error.h"
#include "weft/comm/mpi_world.h"

namespace weft {

std::unique_ptr<World> make_mpi_world(const Launch& launch, Sigterm) {
  throw UserError(
      "this is {}, and weft was built without MPI: install MPI's headers (libopenmpi-dev) and build again, or start it "
      "another way: {}",
      launch.text(), launch.without_mpi());
}

std::string mpi_version() { return "not built in (MPI's headers were not found)"; }

}  // namespace weft
