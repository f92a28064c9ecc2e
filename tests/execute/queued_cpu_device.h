// The CPU's operations on streams that only queue.
#pragma once

#include <memory>
#include <type_traits>
#include <vector>

#include "tests/comm/queued_device.h"
#include "weft/device/cpu/device.h"

namespace weft {

class QueuedCpuStream : public QueuedStream {
 public:
  explicit QueuedCpuStream(CpuDevice& cpu) : cpu_(cpu), inner_(cpu.make_stream(1)) {}
  ~QueuedCpuStream() override { synchronize(); }
  const Operations& operations() const { return cpu_.operations(); }
  Stream& inner() { return *inner_; }

 private:
  CpuDevice& cpu_;
  std::unique_ptr<Stream> inner_;
};

// The arguments are copied, and so are the lists they name: a caller's list need not live until it is used.
template <auto entry, class Arguments>
void queue_operation(Stream& stream, const Arguments& arguments) {
  auto& queued = static_cast<QueuedCpuStream&>(stream);
  const auto run = [&queued](const Arguments& own) { (queued.operations().*entry)(queued.inner(), own); };
  if constexpr (std::is_same_v<Arguments, SumOfSquares>) {
    queued.push([run, own = arguments, list = std::vector(arguments.x.begin(), arguments.x.end())]() mutable {
      own.x = list;
      run(own);
    });
  } else if constexpr (requires { arguments.slabs; }) {
    queued.push([run, own = arguments, list = std::vector(arguments.slabs.begin(), arguments.slabs.end())]() mutable {
      own.slabs = list;
      run(own);
    });
  } else {
    queued.push([run, own = arguments] { run(own); });
  }
}

class QueuedCpuDevice : public QueuedDevice {
 public:
  explicit QueuedCpuDevice(std::string identity = "queued") : QueuedDevice(std::move(identity)) {
#define WEFT_QUEUE(name, Arguments) operations_.name = &queue_operation<&Operations::name, Arguments>;
    WEFT_OPERATIONS(WEFT_QUEUE)
#undef WEFT_QUEUE
  }
  const Operations& operations() const override { return operations_; }
  std::unique_ptr<Stream> make_stream(int) override { return std::make_unique<QueuedCpuStream>(cpu_); }
  std::unique_ptr<Memory> allocate(std::size_t bytes) override { return cpu_.allocate(bytes); }

 private:
  CpuDevice cpu_;
  Operations operations_;
};

}  // namespace weft
