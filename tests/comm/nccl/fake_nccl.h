// NCCL's interface for ranks that are threads, on the streams of QueuedDevice. Like the real one, it blocks until all
// ranks have called in the call that makes a communicator and in the first group, and only queues afterwards. A group
// runs as one "kernel", which waits for its peers until they arrive or it is aborted, and hangs if sizes differ.
#pragma once

#include <memory>

#include "weft/comm/nccl/library.h"

namespace weft {

std::shared_ptr<const nccl::Library> fake_nccl(int version = 23007);

// Its state is global to the process, like NCCL's.
struct FakeNccl {
  static void hold_init(bool hold);     // ncclCommInitRankConfig does not return while held
  static void hold_connect(bool hold);  // nor does the first group of a communicator, unless it is aborted
  static void fail_init(bool fail);     // ncclCommInitRankConfig returns an error
  static void report_error(int rank);   // ncclCommGetAsyncError of this rank's communicators; -1 for none
  static int last_max_blocks();         // the limit given to the last communicator
  static int kernels();                 // queued or running
  static int alive();                   // communicators made and neither destroyed nor aborted
  static int misuses();                 // calls on a communicator that is gone, or destroyed while a kernel ran
};

}  // namespace weft
