// A device that runs nothing and counts everything: what an operation would cost, and which operations are asked for.
// Plans are priced with it, and another device is asked whether it has all that a plan needs.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "weft/device/device.h"
#include "weft/device/operations.h"

namespace weft {

struct OperationCost {
  double flops = 0, bytes = 0;  // multiplications and additions; memory read and written
  OperationCost& operator+=(const OperationCost& other) {
    flops += other.flops;
    bytes += other.bytes;
    return *this;
  }
};
// What limits an operation: products run at the machine's peak, attention and the chunked recurrences at some part of it,
// all others at the speed of memory.
enum class OperationKind : std::uint8_t { matrix, attention, elementwise };
OperationKind kind_of(std::string_view operation);
struct OperationUse {
  OperationCost cost;
  std::int64_t calls = 0;
};
// Routed rows count with their bound. Causal attention counts the pairs it sees: with length L and window w a query at
// position i sees min(i + 1, w); forward 2 (dim + value_dim) FLOP per pair and head, backward 2.5 times that. Documents
// shorter than `length` (boundaries) are not known here: the cost is a bound; without a length all tokens are one.
#define WEFT_COST(name, Arguments) OperationCost cost_of(const Arguments& arguments);
WEFT_OPERATIONS(WEFT_COST)
#undef WEFT_COST

class NullStream : public Stream {
 public:
  void synchronize() override {}
  void count(const char* operation, const OperationCost& cost);

  OperationCost total() const;
  OperationCost total(OperationKind kind) const;
  const std::map<std::string, OperationUse>& by_operation() const { return by_operation_; }
  std::vector<std::string> used() const;  // names, sorted
  void reset();

 private:
  std::map<std::string, OperationUse> by_operation_;
};

class NullDevice : public Device {
 public:
  NullDevice();
  std::string name() const override { return "null"; }
  const Operations& operations() const override { return operations_; }
  std::unique_ptr<Stream> make_stream(int threads) override;
  std::unique_ptr<Event> make_event() override;
  std::unique_ptr<Memory> allocate(std::size_t bytes) override;  // memory that must not be touched
  std::size_t free_bytes() const override;
  void copy_in(Stream&, void*, const void*, std::size_t) override {}
  void copy_out(Stream&, void*, const void*, std::size_t) override {}
  void copy(Stream&, void*, const void*, std::size_t) override {}
  void reduce(Stream&, Reduction, DType, void*, std::span<const std::byte* const>, std::int64_t) override {}

 private:
  Operations operations_;
};

}  // namespace weft
