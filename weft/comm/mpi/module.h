// The interface of libweft_mpi.so. The executable looks it up by name and checks its version, since the two files could
// come from different builds.
#pragma once

#include <string>

#include "weft/comm/sigterm.h"
#include "weft/comm/world.h"

namespace weft {

struct MpiModule {
  int version;  // mpi_module_version of the module's build
  // rank and size as the launcher gives them; the caller owns the world
  World* (*open)(int rank, int size, Sigterm sigterm);
  std::string (*library_version)();
};

inline constexpr int mpi_module_version = 4;  // raised when World, Communicator or MpiModule change
inline constexpr const char* mpi_module_entry = "weft_mpi_module";

}  // namespace weft

// Defined by the module (weft/comm/mpi/world.cc), found by the executable as mpi_module_entry.
extern "C" const weft::MpiModule* weft_mpi_module();
