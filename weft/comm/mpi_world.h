// The world of MPI. libweft_mpi.so beside the executable holds all that knows MPI; it is loaded here and nowhere else,
// so that a program without mpirun needs no MPI installed. Builds without MPI's headers have weft/comm/unavailable/.
#pragma once

#include <memory>
#include <string>

#include "weft/comm/launch.h"
#include "weft/comm/world.h"

namespace weft {

// Connects this process with the others that the launcher started; to be destroyed by the thread that made it, after
// its groups. UserError when the launcher does not speak MPI, RunError when MPI cannot be loaded or started. The
// destructor waits for the other ranks to come to it too; catch and print errors before it, as mpirun stops the others
// when the first rank exits with a failure.
std::unique_ptr<World> make_mpi_world(const Launch& launch);

// What `weft devices` says about MPI: the library's version, or why there is none. Starts nothing.
std::string mpi_version();

}  // namespace weft
