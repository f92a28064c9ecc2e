// A device in host memory that queues its work, as a GPU does: every stream is a thread that runs its work in order. A
// graph holds all work recorded, on any stream, in the order of the calls; when launched, one stream runs it in that
// order. For tests of code that only queues.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <string>
#include <thread>

#include "weft/device/device.h"
#include "weft/device/operations.h"

namespace weft {

class QueuedStream : public Stream {
 public:
  QueuedStream();
  ~QueuedStream() override;  // runs the queued work first
  void synchronize() override;
  void* native() const override { return const_cast<QueuedStream*>(this); }
  void push(std::function<void()> work);

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> queue_;  // the first one is running
  bool stop_ = false;
  std::thread thread_;
};

class QueuedDevice : public Device {
 public:
  // Devices with the same identity are the same hardware.
  explicit QueuedDevice(std::string identity) : identity_(std::move(identity)) {}

  std::string name() const override { return "queued"; }
  std::string identity() const override { return identity_; }
  bool asynchronous() const override { return true; }
  const Operations& operations() const override { return operations_; }
  std::unique_ptr<Stream> make_stream(int) override { return std::make_unique<QueuedStream>(); }
  std::unique_ptr<Event> make_event() override;
  std::unique_ptr<Memory> allocate(std::size_t bytes) override;
  std::size_t free_bytes() const override { return std::size_t{1} << 30; }
  std::unique_ptr<Graph> capture(Stream& stream, const std::function<void()>& queue) override;
  void copy_in(Stream& stream, void* device, const void* host, std::size_t bytes) override;
  void copy_out(Stream& stream, void* host, const void* device, std::size_t bytes) override;
  void copy(Stream& stream, void* to, const void* from, std::size_t bytes) override;
  void reduce(Stream& stream, Reduction reduction, DType dtype, void* out, std::span<const std::byte* const> inputs,
              std::int64_t count) override;

 private:
  std::string identity_;
  Operations operations_;
};

}  // namespace weft
