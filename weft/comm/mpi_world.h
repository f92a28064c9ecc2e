// A world over MPI. All code that calls MPI is in libweft_mpi.so next to the executable; it is loaded only here, so
// that a program without mpirun needs no MPI installed. Builds without MPI's headers use weft/comm/unavailable/.
#pragma once

#include <memory>
#include <string>

#include "weft/comm/launch.h"
#include "weft/comm/sigterm.h"
#include "weft/comm/world.h"

namespace weft {

// Connects this process with the others that the launcher started. Must be destroyed by the thread that made it, after
// its groups. UserError when the launcher does not support MPI, RunError when MPI cannot be loaded or started. The
// destructor waits for the other ranks' destructors; catch and print errors before it, as mpirun stops the others when
// the first rank exits with a failure.
std::unique_ptr<World> make_mpi_world(const Launch& launch, Sigterm sigterm = Sigterm::watch);

// What `weft devices` prints about MPI: the library's version, or why there is none. Does not start MPI.
std::string mpi_version();

}  // namespace weft
