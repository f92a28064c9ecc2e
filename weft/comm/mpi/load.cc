#include <filesystem>

#include <dlfcn.h>

#include "weft/base/error.h"
#include "weft/comm/mpi/module.h"
#include "weft/comm/mpi_world.h"

namespace weft {

namespace {

// The module, which stays loaded. RunError with the reason if it cannot be loaded.
const MpiModule& load_module() {
  std::error_code error;
  const std::filesystem::path program = std::filesystem::read_symlink("/proc/self/exe", error);
  const std::filesystem::path file = program.parent_path() / "libweft_mpi.so";
  // Global: MPI's plug-ins expect to find the symbols of its library.
  void* handle = dlopen(file.c_str(), RTLD_NOW | RTLD_GLOBAL);
  if (handle == nullptr) throw RunError("cannot load MPI: {}", dlerror());
  using Entry = const MpiModule* (*)();
  const auto entry = reinterpret_cast<Entry>(dlsym(handle, mpi_module_entry));
  if (entry == nullptr || entry()->version != mpi_module_version)
    throw RunError("cannot load MPI: {} belongs to another build of weft", file.string());
  return *entry();
}

}  // namespace

std::unique_ptr<World> make_mpi_world(const Launch& launch, Sigterm sigterm) {
  if (!launch.mpi) {
    throw UserError(
        "MPI cannot connect this process with others: it is {}. Start it with mpirun, mpiexec, or srun with MPI "
        "support "
        "(srun --mpi=pmix)",
        launch.text());
  }
  try {
    return std::unique_ptr<World>(load_module().open(launch.rank, launch.size, sigterm));
  } catch (const RunError& error) {
    throw RunError("{} (this is {}; {})", error.what(), launch.text(), launch.without_mpi());
  }
}

std::string mpi_version() {
  try {
    return load_module().library_version();
  } catch (const RunError& error) {
    return error.what();
  }
}

}  // namespace weft
