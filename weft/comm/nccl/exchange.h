// Sends and receives that NCCL runs as one kernel. They are queued by queue(), all or none.
#pragma once

#include <cstddef>
#include <cstdint>
#include <mutex>

#include "weft/comm/nccl/library.h"
#include "weft/comm/nccl/link.h"

namespace weft::nccl {

class Exchange {
 public:
  // stream: Stream::native(). nccl::Error here and below.
  Exchange(const Library& library, Link& link, void* stream)
      : library_(library), link_(link), stream_(stream), calls_(link.calls) {
    if (link.aborted.load()) throw Error("this communicator was aborted");
    check(library_.ncclGroupStart());
    open_ = true;
  }
  ~Exchange() {
    if (open_) library_.ncclGroupEnd();
  }
  Exchange(const Exchange&) = delete;
  Exchange& operator=(const Exchange&) = delete;

  // Both sides know how much it is, so nothing is not sent.
  void send(int peer, const std::byte* data, std::int64_t length) {
    if (length > 0) check(library_.ncclSend(data, static_cast<std::size_t>(length), bytes, peer, link_.comm, stream_));
  }
  void receive(int peer, std::byte* data, std::int64_t length) {
    if (length > 0) check(library_.ncclRecv(data, static_cast<std::size_t>(length), bytes, peer, link_.comm, stream_));
  }
  void queue() {
    open_ = false;
    check(library_.ncclGroupEnd());
  }

 private:
  void check(Result result) { library_.check(result, link_.comm); }

  const Library& library_;
  Link& link_;
  void* stream_;
  std::lock_guard<std::mutex> calls_;
  bool open_ = false;
};

}  // namespace weft::nccl
