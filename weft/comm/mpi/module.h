// The one door of libweft_mpi.so. The executable asks for it by name, and for its version, since the two files could
// come from different builds.
#pragma once

#include <string>

#include "weft/comm/world.h"

namespace weft {

struct MpiModule {
  int version;                         // mpi_module_version of the module's build
  World* (*open)(int rank, int size);  // as the launcher numbers this process; the caller owns it
  std::string (*library_version)();
};

inline constexpr int mpi_module_version = 2;  // to be raised when World, Communicator or MpiModule change
inline constexpr const char* mpi_module_entry = "weft_mpi_module";

}  // namespace weft
