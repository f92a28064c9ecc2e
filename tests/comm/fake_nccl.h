// NCCL's interface for ranks that are threads, on the streams of QueuedDevice. Like the real one it blocks in the call
// that makes a communicator and in the first group until all have come, only queues afterwards, runs a group as one
// "kernel" that waits for its peers until they come or it is aborted, and hangs where sizes differ.
#pragma once

#include <memory>

#include "weft/comm/nccl/library.h"

namespace weft {

std::shared_ptr<const nccl::Library> fake_nccl(int version = 23007);

// Its state is the process's, as NCCL's is.
struct FakeNccl {
  static void hold_init(bool hold);     // ncclCommInitRankConfig does not return meanwhile
  static void hold_connect(bool hold);  // nor does the first group of a communicator, unless it is aborted
  static void fail_init(bool fail);     // it returns an error
  static void report_error(int rank);   // ncclCommGetAsyncError of this rank's communicators; -1 for none
  static int last_max_blocks();         // what the last communicator was asked for
  static int kernels();                 // queued or running
  static int alive();                   // communicators that were made and neither destroyed nor aborted
  static int misuses();                 // calls on a communicator that is gone, or destroyed while a kernel ran
};

}  // namespace weft
