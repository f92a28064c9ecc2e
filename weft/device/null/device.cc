#include "weft/device/null/device.h"

#include <limits>

#include "weft/device/operations.h"

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

OperationKind kind_of(std::string_view operation) {
  if (operation == "matmul" || operation == "grouped_matmul") return OperationKind::matrix;
  for (std::string_view blocked :
       {"attention", "attention_backward", "sparse_attention", "sparse_attention_backward", "choose_keys",
        "attention_means", "indexer_loss", "state_scan", "state_scan_backward", "delta_rule", "delta_rule_backward"})
    if (operation == blocked) return OperationKind::attention;
  return OperationKind::elementwise;
}

void NullStream::count(const char* operation, const OperationCost& cost) {
  OperationUse& use = by_operation_[operation];
  use.cost += cost;
  ++use.calls;
}

OperationCost NullStream::total() const {
  OperationCost sum;
  for (const auto& [name, use] : by_operation_) sum += use.cost;
  return sum;
}

OperationCost NullStream::total(OperationKind kind) const {
  OperationCost sum;
  for (const auto& [name, use] : by_operation_)
    if (kind_of(name) == kind) sum += use.cost;
  return sum;
}

std::vector<std::string> NullStream::used() const {
  std::vector<std::string> names;
  for (const auto& [name, use] : by_operation_) names.push_back(name);
  return names;
}

void NullStream::reset() { by_operation_.clear(); }

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
