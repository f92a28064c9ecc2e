// Sends and receives that NCCL runs as one kernel. queue() queues all of them or none.
#pragma once

#include <cstddef>
#include <cstdint>
#include <mutex>

#include "weft/comm/nccl/comm_handle.h"
#include "weft/comm/nccl/library.h"

namespace weft::nccl {

class Exchange {
 public:
  // stream: Stream::native(). All functions throw nccl::Error.
  Exchange(const Library& library, CommHandle& handle, void* stream)
      : library_(library), handle_(handle), stream_(stream), calls_(handle.calls) {
    if (handle.aborted.load()) throw Error("this communicator was aborted");
    check(library_.ncclGroupStart());
    open_ = true;
  }
  ~Exchange() {
    if (open_) library_.ncclGroupEnd();
  }
  Exchange(const Exchange&) = delete;
  Exchange& operator=(const Exchange&) = delete;

  // Both sides know the length, so empty messages are skipped.
  void send(int peer, const std::byte* data, std::int64_t length) {
    if (length > 0)
      check(library_.ncclSend(data, static_cast<std::size_t>(length), bytes, peer, handle_.comm, stream_));
  }
  void receive(int peer, std::byte* data, std::int64_t length) {
    if (length > 0)
      check(library_.ncclRecv(data, static_cast<std::size_t>(length), bytes, peer, handle_.comm, stream_));
  }
  void queue() {
    open_ = false;
    check(library_.ncclGroupEnd());
  }

 private:
  void check(Result result) { library_.check(result, handle_.comm); }

  const Library& library_;
  CommHandle& handle_;
  void* stream_;
  std::lock_guard<std::mutex> calls_;
  bool open_ = false;
};

}  // namespace weft::nccl
