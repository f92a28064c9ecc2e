#include "weft/device/cpu/device.h"

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <fstream>

#include <sys/mman.h>

#include "weft/base/error.h"
#include "weft/base/text.h"
#include "weft/device/cpu/kernels/table.h"
#include "weft/device/cpu/stream.h"

namespace weft {

namespace {

constexpr std::size_t alignment = 256;
constexpr std::size_t huge_page = std::size_t{2} << 20;

class CpuMemory : public Memory {
 public:
  CpuMemory(std::byte* data, std::size_t bytes) : data_(data), bytes_(bytes) {}
  ~CpuMemory() override { std::free(data_); }
  CpuMemory(const CpuMemory&) = delete;
  CpuMemory& operator=(const CpuMemory&) = delete;
  std::byte* data() const override { return data_; }
  std::size_t bytes() const override { return bytes_; }
  void touch() const override {
    for (std::size_t at = 0; at < bytes_; at += 4096) {
      volatile std::byte& page = data_[at];
      page = page;
    }
  }

 private:
  std::byte* data_;
  std::size_t bytes_;
};

// An operation is done when its call returns, so a recorded point has always been reached: there is nothing to wait
// for. As on other devices, waiting for an event that was never recorded returns at once.
class CpuEvent : public Event {
 public:
  void record(Stream&) override { recorded_.store(true, std::memory_order_release); }
  void wait_on(Stream&) override { (void)recorded_.load(std::memory_order_acquire); }
  bool done() const override { return recorded_.load(std::memory_order_acquire); }

 private:
  std::atomic<bool> recorded_{false};
};

}  // namespace

const char* name_of(Isa isa) {
  switch (isa) {
    case Isa::v3:
      return "AVX2";
    case Isa::v4:
      return "AVX-512";
    default:
      return "baseline";
  }
}

bool supported(Isa isa) {
  switch (isa) {
#ifdef WEFT_WITH_BASELINE
    case Isa::baseline:
      return true;
#endif
#ifdef WEFT_WITH_V3
    case Isa::v3:
      __builtin_cpu_init();
      return __builtin_cpu_supports("x86-64-v3");
#endif
#ifdef WEFT_WITH_V4
    case Isa::v4:
      __builtin_cpu_init();
      return __builtin_cpu_supports("x86-64-v4");
#endif
    default:
      return false;
  }
}

Isa best_isa() { return supported(Isa::v4) ? Isa::v4 : supported(Isa::v3) ? Isa::v3 : Isa::baseline; }

CpuDevice::CpuDevice(Isa isa) : isa_(isa) {
  if (!supported(isa))
    throw UserError("this machine, or this build (WEFT_CPU_ISAS), has no {} kernels: use {} ones", name_of(isa),
                    name_of(best_isa()));
  switch (isa) {
#ifdef WEFT_WITH_V3
    case Isa::v3:
      isa_v3::fill_table(operations_);
      break;
#endif
#ifdef WEFT_WITH_V4
    case Isa::v4:
      isa_v4::fill_table(operations_);
      break;
#endif
#ifdef WEFT_WITH_BASELINE
    case Isa::baseline:
      isa_baseline::fill_table(operations_);
      break;
#endif
    default:
      throw BugError("a supported instruction set without kernels");
  }
}

std::string CpuDevice::name() const { return fmt::format("cpu ({})", name_of(isa_)); }

std::unique_ptr<Stream> CpuDevice::make_stream(int threads) {
  if (threads < 1) throw UserError("a CPU stream of {} threads: it needs at least 1", threads);
  return std::make_unique<CpuStream>(threads);
}

std::unique_ptr<Event> CpuDevice::make_event() { return std::make_unique<CpuEvent>(); }

std::unique_ptr<Memory> CpuDevice::allocate(std::size_t bytes) {
  // The system hands out more than it has and kills the process later; ask first.
  const std::size_t free = free_bytes();
  const bool huge = bytes >= 2 * huge_page;
  const std::size_t step = huge ? huge_page : alignment;
  void* data = nullptr;
  if (bytes <= free) data = std::aligned_alloc(step, (std::max<std::size_t>(bytes, 1) + step - 1) / step * step);
  if (data == nullptr)
    throw RunError("cannot allocate {} of memory: {} are free", human_bytes(static_cast<double>(bytes)),
                   human_bytes(static_cast<double>(free)));
  if (huge) madvise(data, bytes, MADV_HUGEPAGE);  // fewer TLB misses; harmless where it is not allowed
  return std::make_unique<CpuMemory>(static_cast<std::byte*>(data), bytes);
}

std::size_t CpuDevice::free_bytes() const {
  std::ifstream file("/proc/meminfo");
  std::string key, unit;
  std::size_t kib = 0;
  while (file >> key >> kib) {
    if (key == "MemAvailable:") return kib * 1024;
    std::getline(file, unit);
  }
  return SIZE_MAX / 2;  // unknown: let the allocation itself decide
}

void CpuDevice::copy_in(Stream&, void* device, const void* host, std::size_t bytes) {
  if (bytes > 0) std::memcpy(device, host, bytes);
}

void CpuDevice::copy_out(Stream&, void* host, const void* device, std::size_t bytes) {
  if (bytes > 0) std::memcpy(host, device, bytes);
}

void CpuDevice::copy(Stream&, void* to, const void* from, std::size_t bytes) {
  if (bytes > 0) std::memmove(to, from, bytes);
}

void CpuDevice::reduce(Stream&, Reduction reduction, DType dtype, void* out, std::span<const std::byte* const> inputs,
                       std::int64_t count) {
  reduce_in_rank_order(reduction, dtype, static_cast<std::byte*>(out), inputs, count);
}

}  // namespace weft
