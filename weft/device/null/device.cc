#include "weft/device/null/device.h"

#include <limits>

namespace weft {

namespace {

#define WEFT_COUNT(name, Arguments)                                    \
  void count_##name(Stream& stream, const Arguments& arguments) {      \
    static_cast<NullStream&>(stream).count(#name, cost_of(arguments)); \
  }
WEFT_OPERATIONS(WEFT_COUNT)
#undef WEFT_COUNT

class NullEvent : public Event {
 public:
  void record(Stream&) override {}
  void wait_on(Stream&) override {}
  bool done() const override { return true; }
};

class NullMemory : public Memory {
 public:
  explicit NullMemory(std::size_t bytes) : bytes_(bytes) {}
  std::byte* data() const override { return nullptr; }
  std::size_t bytes() const override { return bytes_; }

 private:
  std::size_t bytes_;
};

}  // namespace

void NullStream::count(const char* operation, const OperationCost& cost) {
  OperationCost& own = by_operation_[operation];
  own.flops += cost.flops;
  own.bytes += cost.bytes;
  total_.flops += cost.flops;
  total_.bytes += cost.bytes;
}

void NullStream::reset() {
  total_ = {};
  by_operation_.clear();
}

NullDevice::NullDevice() {
#define WEFT_FILL(name, Arguments) operations_.name = &count_##name;
  WEFT_OPERATIONS(WEFT_FILL)
#undef WEFT_FILL
}

std::unique_ptr<Stream> NullDevice::make_stream(int) { return std::make_unique<NullStream>(); }
std::unique_ptr<Event> NullDevice::make_event() { return std::make_unique<NullEvent>(); }
std::unique_ptr<Memory> NullDevice::allocate(std::size_t bytes) { return std::make_unique<NullMemory>(bytes); }
std::size_t NullDevice::free_bytes() const { return std::numeric_limits<std::size_t>::max(); }

}  // namespace weft
