// The part of NCCL's C interface (2.18 and newer) that Weft uses, declared here and loaded from libnccl.so.2 at run
// time.
#pragma once

#include <climits>
#include <cstddef>
#include <memory>
#include <string>
#include <type_traits>

#include "weft/base/error.h"
#include "weft/comm/launch.h"

namespace weft::nccl {

struct Comm;  // ncclComm_t is a pointer to one

// ncclResult_t: the values that Weft distinguishes.
using Result = int;
constexpr Result success = 0, in_progress = 7;
constexpr int bytes = 1;  // ncclUint8: everything travels as bytes

struct UniqueId {
  char internal[128];
};

// ncclConfig_t as of 2.18. A newer NCCL reads `size` bytes and uses its defaults for the rest.
struct Config {
  static constexpr int unset = INT_MIN;
  std::size_t size = sizeof(Config);
  unsigned magic = 0xcafebeef;
  unsigned version = 21800;
  int blocking = 1;
  int cluster_size = unset;
  int min_blocks = unset, max_blocks = unset;  // thread blocks of a collective's kernel
  const char* net_name = nullptr;
  int split_share = unset;
};

// Streams are a cudaStream_t (Stream::native).
#define WEFT_NCCL_FUNCTIONS(X)                                                                 \
  X(ncclGetVersion, Result(int*))                                                              \
  X(ncclGetUniqueId, Result(UniqueId*))                                                        \
  X(ncclCommInitRankConfig, Result(Comm**, int size, UniqueId, int rank, Config*))             \
  X(ncclCommDestroy, Result(Comm*))                                                            \
  X(ncclCommAbort, Result(Comm*))                                                              \
  X(ncclCommGetAsyncError, Result(Comm*, Result*))                                             \
  X(ncclGetErrorString, const char*(Result))                                                   \
  X(ncclGetLastError, const char*(Comm*))                                                      \
  X(ncclGroupStart, Result())                                                                  \
  X(ncclGroupEnd, Result())                                                                    \
  X(ncclSend, Result(const void*, std::size_t count, int type, int peer, Comm*, void* stream)) \
  X(ncclRecv, Result(void*, std::size_t count, int type, int peer, Comm*, void* stream))

// An error that NCCL reports.
class Error : public RunError {
 public:
  using RunError::RunError;
};

// Tests fill it with their own functions.
struct Library {
#define WEFT_NCCL_POINTER(name, ...) std::add_pointer_t<__VA_ARGS__> name = nullptr;
  WEFT_NCCL_FUNCTIONS(WEFT_NCCL_POINTER)
#undef WEFT_NCCL_POINTER
  int version = 0;   // 23007 is 2.30.7
  std::string file;  // it was loaded from

  void check(Result result, Comm* comm = nullptr) const;  // throws Error unless it is success
};

std::string version_text(int version);  // "2.30.7"

// The first version that allows several ranks on one GPU.
constexpr int first_with_shared_gpus = 23000;

// Loads the file that WEFT_NCCL names, or else the first libnccl.so.2 found: next to the executable, by the loader, in
// the CUDA toolkit's folder. It stays loaded. UserError lists the files tried and why each failed.
std::shared_ptr<const Library> load(const Environment& environment);

}  // namespace weft::nccl
