// A device that runs nothing and counts everything: what an operation would cost, and which operations are asked for.
// Plans are priced with it, and another device is asked whether it has all that a plan needs.
#pragma once

#include <map>
#include <memory>
#include <string>

#include "weft/device/device.h"

namespace weft {

struct OperationCost {
  double flops = 0, bytes = 0;  // multiplications and additions; memory read and written
};
// Routed rows count with their bound. Causal attention counts the pairs it sees: with length L and window w a query at
// position i sees min(i + 1, w); forward 2 (dim + value_dim) FLOP a pair and head, backward 2.5 times that.
#define WEFT_COST(name, Arguments) OperationCost cost_of(const Arguments& arguments);
WEFT_OPERATIONS(WEFT_COST)
#undef WEFT_COST

class NullStream : public Stream {
 public:
  void synchronize() override {}
  void count(const char* operation, const OperationCost& cost);

  OperationCost total() const { return total_; }
  const std::map<std::string, OperationCost>& by_operation() const { return by_operation_; }
  void reset();

 private:
  OperationCost total_;
  std::map<std::string, OperationCost> by_operation_;
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

 private:
  Operations operations_;
};

}  // namespace weft
