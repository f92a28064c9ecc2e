// A device: memory, streams, events, and its table of operations. Implementations: cpu/, cuda/, null/.
#pragma once

#include <algorithm>
#include <cstddef>
#include <functional>
#include <memory>
#include <span>
#include <string>

#include "weft/base/dtype.h"
#include "weft/device/reduction.h"

namespace weft {

struct Operations;  // weft/device/operations.h

// What the operations of a stream need in addition to their tensors, in bytes.
struct WorkingMemory {
  std::size_t scratch = 0;   // the most that one operation needs
  std::size_t products = 0;  // of a library's products
  std::size_t total() const { return scratch + products; }
  void grow_to(const WorkingMemory& other) {
    scratch = std::max(scratch, other.scratch);
    products = std::max(products, other.products);
  }
};

// An ordered queue of operations. On a CPU operations run at once on the calling thread and its team.
class Stream {
 public:
  virtual ~Stream() = default;
  virtual void synchronize() = 0;  // returns when everything queued so far is done; throws what went wrong
  // Operations queued after this take at most `count` of Device::processors(), where they can, to leave room for those
  // of other streams. It never changes a result.
  virtual void use_processors(int /*count*/) {}
  // The handle that the device's own libraries take: a cudaStream_t. Null on a CPU.
  virtual void* native() const { return nullptr; }
  // Makes room for operations that need this much. Where it is not enough, it grows when they are first queued.
  virtual void reserve(const WorkingMemory&) {}
  virtual std::size_t held_bytes() const { return 0; }  // of device memory, reserved so far
};

// A point in a stream that other streams can wait for.
class Event {
 public:
  virtual ~Event() = default;
  virtual void record(Stream& stream) = 0;
  virtual void wait_on(Stream& stream) = 0;  // work queued on `stream` after this waits for the recorded point
  virtual bool done() const = 0;
  virtual double seconds_since(const Event&) const { return 0; }  // both done; where a device keeps time
};

// Work of a step, recorded once and queued again as a whole.
class Graph {
 public:
  virtual ~Graph() = default;
  virtual void launch(Stream& stream) = 0;
  // Why a launch costs the host more time the more work is in it; "" where the device unrolls the work itself.
  virtual std::string why_from_host() const { return {}; }
};

// Device memory, freed with the object. Aligned to 256 bytes. Contents are undefined.
class Memory {
 public:
  virtual ~Memory() = default;
  virtual std::byte* data() const = 0;
  virtual std::size_t bytes() const = 0;
  virtual void touch() const {}  // makes the pages resident, where the system hands them out on first use
};

class Device {
 public:
  virtual ~Device() = default;
  virtual std::string name() const = 0;
  // Which device of its kind on this machine. Two objects with the same identity are the same hardware.
  virtual std::string identity() const { return name(); }
  // Every thread that works with this device calls this first: CUDA keeps a current GPU per thread.
  virtual void bind_thread() {}
  virtual const Operations& operations() const = 0;
  virtual std::unique_ptr<Stream> make_stream(int threads) = 0;  // threads: of a CPU's team; others ignore it
  // A stream whose work goes first where several streams wait for room.
  virtual std::unique_ptr<Stream> make_urgent_stream() { return make_stream(1); }
  // What all streams share: a GPU's multiprocessors. 1: nothing to divide; streams of a CPU have threads of their own.
  virtual int processors() const { return 1; }
  virtual std::unique_ptr<Event> make_event() = 0;
  virtual std::unique_ptr<Memory> allocate(std::size_t bytes) = 0;  // RunError with sizes when there is too little
  virtual std::size_t free_bytes() const = 0;
  // Host memory that copies to and from the device reach directly. Plain memory where the two are one.
  virtual std::unique_ptr<Memory> allocate_host(std::size_t bytes) { return allocate(bytes); }
  // What a stream needs for the operations that `queue` puts on one. Nothing runs, and the tensors need no memory.
  virtual WorkingMemory working_memory(const std::function<void(const Operations&, Stream&)>& queue) {
    (void)queue;
    return {};
  }
  // About what the device's libraries take in addition to everything allocated here: code of kernels, graphs.
  virtual std::size_t library_bytes() const { return 0; }
  // Whether an operation only queues its work and returns: then one host thread feeds all streams, and events order
  // them. Otherwise an operation is done when its call returns.
  virtual bool asynchronous() const { return false; }
  virtual bool computes_in(DType) const { return true; }  // f32, f64 or bf16, as the dtype of a model
  // Records what `queue` puts on `stream`, and on streams that wait for it and that it waits for in the end, instead of
  // running it. Null where a device has no graphs.
  virtual std::unique_ptr<Graph> capture(Stream&, const std::function<void()>& queue) {
    (void)queue;
    return nullptr;
  }
  // Copies between host and device, in the stream's order; the host memory must live until it is synchronized.
  virtual void copy_in(Stream& stream, void* device, const void* host, std::size_t bytes) = 0;
  virtual void copy_out(Stream& stream, void* host, const void* device, std::size_t bytes) = 0;
  // From memory of this device, or of another of its kind, to its own.
  virtual void copy(Stream& stream, void* to, const void* from, std::size_t bytes) = 0;
  // weft/device/reduction.h in device memory: the same bits. There are at most as many inputs as ranks in a group.
  virtual void reduce(Stream& stream, Reduction reduction, DType dtype, void* out,
                      std::span<const std::byte* const> inputs, std::int64_t count) = 0;
};

}  // namespace weft
