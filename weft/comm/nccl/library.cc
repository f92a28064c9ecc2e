#include "weft/comm/nccl/library.h"

#include <filesystem>
#include <vector>

#include <dlfcn.h>

#ifndef WEFT_CUDA_LIBRARIES  // this build has no CUDA, but the machine may
#define WEFT_CUDA_LIBRARIES "/usr/local/cuda/lib64"
#endif

namespace weft::nccl {

namespace {

// A library next to the executable was put there for it, so it comes before the system's.
std::vector<std::string> places_of(const Environment& environment) {
  const char* named = environment("WEFT_NCCL");
  if (named != nullptr && *named != '\0') return {named};
  const std::string file = "libnccl.so.2";
  std::error_code error;
  const std::filesystem::path program = std::filesystem::read_symlink("/proc/self/exe", error);
  std::vector<std::string> places{(program.parent_path() / file).string(), file, WEFT_CUDA_LIBRARIES "/" + file};
  if (places.back() != "/usr/local/cuda/lib64/" + file) places.push_back("/usr/local/cuda/lib64/" + file);
  return places;
}

}  // namespace

void Library::check(Result result, Comm* comm) const {
  if (result == success) return;
  const char* last = ncclGetLastError(comm);
  const bool more = last != nullptr && *last != '\0';
  throw Error("NCCL {}: {}{}{}", version_text(version), ncclGetErrorString(result), more ? ": " : "", more ? last : "");
}

std::string version_text(int version) {
  return fmt::format("{}.{}.{}", version / 10000, version / 100 % 100, version % 100);
}

std::shared_ptr<const Library> load(const Environment& environment) {
  auto library = std::make_shared<Library>();
  void* handle = nullptr;
  std::string tried;
  for (const std::string& place : places_of(environment)) {
    library->file = place;
    handle = dlopen(place.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (handle != nullptr) break;
    tried += fmt::format("\n  {}", dlerror());
  }
  if (handle == nullptr)
    throw UserError(
        "ranks on GPUs need NCCL (libnccl.so.2, 2.18 or newer), which could not be loaded: install it, put its folder "
        "into "
        "LD_LIBRARY_PATH, or name the file in WEFT_NCCL{}",
        tried);
#define WEFT_NCCL_RESOLVE(name, ...)                                               \
  library->name = reinterpret_cast<decltype(library->name)>(dlsym(handle, #name)); \
  if (library->name == nullptr)                                                    \
    throw UserError("{} lacks {}: Weft needs NCCL 2.18 or newer; name another file in WEFT_NCCL", library->file, #name);
  WEFT_NCCL_FUNCTIONS(WEFT_NCCL_RESOLVE)
#undef WEFT_NCCL_RESOLVE
  library->check(library->ncclGetVersion(&library->version));
  Dl_info info{};
  if (dladdr(reinterpret_cast<void*>(library->ncclGetVersion), &info) != 0 && info.dli_fname != nullptr)
    library->file = info.dli_fname;
  return library;
}

}  // namespace weft::nccl
