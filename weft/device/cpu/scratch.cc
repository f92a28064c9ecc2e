#include "weft/device/cpu/scratch.h"

#include <array>
#include <cstdlib>
#include <memory>
#include <new>

#include <sys/mman.h>

namespace weft {

namespace {

constexpr std::size_t page = 4096, huge_page = std::size_t{2} << 20, large = std::size_t{128} << 10;

struct Free {
  void operator()(std::byte* data) const { std::free(data); }
};
struct Buffer {
  std::unique_ptr<std::byte, Free> data;
  std::size_t bytes = 0;
};

}  // namespace

std::byte* thread_scratch(ScratchUse use, std::size_t bytes) {
  // Not shared state: each thread sees its own, and no result depends on it.
  thread_local std::array<Buffer, static_cast<std::size_t>(ScratchUse::count)> buffers;
  Buffer& buffer = buffers[static_cast<std::size_t>(use)];
  if (buffer.bytes < bytes) {
    buffer.data.reset();
    buffer.bytes = 0;
    // Packed operands are streamed at the caches' full speed; with small pages a third of it is lost.
    const std::size_t step = bytes >= large ? huge_page : page;
    const std::size_t rounded = (bytes + step - 1) / step * step;
    buffer.data.reset(static_cast<std::byte*>(std::aligned_alloc(step, rounded)));
    if (!buffer.data) throw std::bad_alloc();
    if (bytes >= large) madvise(buffer.data.get(), rounded, MADV_HUGEPAGE);
    buffer.bytes = rounded;
  }
  return buffer.data.get();
}

}  // namespace weft
