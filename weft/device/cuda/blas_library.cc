#include "weft/device/cuda/blas_library.h"

#include <filesystem>
#include <vector>

#include <dlfcn.h>
#include <fmt/format.h>

#include "weft/base/error.h"

namespace weft::cuda {

namespace {

// The loader's own search first; then next to the executable, and where toolkits are installed.
void* open_library() {
  const std::string file = fmt::format("libcublasLt.so.{}", CUBLAS_VER_MAJOR);
  std::error_code error;
  const std::filesystem::path program = std::filesystem::read_symlink("/proc/self/exe", error);
  std::string why;
  for (const std::string& place : {file, (program.parent_path() / file).string(), WEFT_CUDA_LIBRARIES "/" + file,
                                   "/usr/local/cuda/lib64/" + file}) {
    if (void* handle = dlopen(place.c_str(), RTLD_NOW | RTLD_LOCAL)) return handle;
    if (why.empty()) why = dlerror();
  }
  throw RunError("cannot load {}: {}. It comes with CUDA; put its folder into LD_LIBRARY_PATH", file, why);
}

}  // namespace

BlasLibrary::BlasLibrary() {
  void* handle = open_library();  // stays loaded
#define WEFT_RESOLVE(function)                                               \
  function = reinterpret_cast<decltype(function)>(dlsym(handle, #function)); \
  if (function == nullptr) throw RunError("this machine's cuBLASLt lacks {}", #function);
  WEFT_BLAS_FUNCTIONS(WEFT_RESOLVE)
#undef WEFT_RESOLVE
}

std::string blas_version() {
  try {
    const std::size_t version = BlasLibrary().cublasLtGetVersion();
    return fmt::format("{}.{}.{}", version / 10000, version / 100 % 100, version % 100);
  } catch (const RunError& error) {
    return error.what();
  }
}

}  // namespace weft::cuda
