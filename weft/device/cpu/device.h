// The CPU as a device. Operations run at once, on the calling thread and the team of its stream; one CpuDevice may
// serve any number of streams and threads.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "weft/device/device.h"
#include "weft/device/operations.h"

namespace weft {

// The instruction sets the kernels are compiled for, weakest first.
enum class Isa : std::uint8_t { baseline, v3, v4 };  // v3: AVX2 and FMA; v4: AVX-512
const char* name_of(Isa isa);
bool supported(Isa isa);  // by this machine and this build
Isa best_isa();

class CpuDevice : public Device {
 public:
  explicit CpuDevice(Isa isa = best_isa());  // UserError where the machine lacks it

  Isa isa() const { return isa_; }
  std::string name() const override;
  const Operations& operations() const override { return operations_; }
  std::unique_ptr<Stream> make_stream(int threads) override;
  std::unique_ptr<Event> make_event() override;
  std::unique_ptr<Memory> allocate(std::size_t bytes) override;
  std::size_t free_bytes() const override;
  void copy_in(Stream& stream, void* device, const void* host, std::size_t bytes) override;
  void copy_out(Stream& stream, void* host, const void* device, std::size_t bytes) override;
  void copy(Stream& stream, void* to, const void* from, std::size_t bytes) override;
  void reduce(Stream& stream, Reduction reduction, DType dtype, void* out, std::span<const std::byte* const> inputs,
              std::int64_t count) override;

 private:
  Isa isa_;
  Operations operations_;
};

}  // namespace weft
