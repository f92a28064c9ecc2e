#include "weft/device/cpu/scratch.h"

#include <array>
#include <cstdlib>
#include <memory>
#include <new>

namespace weft {

namespace {

constexpr std::size_t page = 4096;

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
    const std::size_t rounded = (bytes + page - 1) / page * page;
    buffer.data.reset(static_cast<std::byte*>(std::aligned_alloc(page, rounded)));
    if (!buffer.data) throw std::bad_alloc();
    buffer.bytes = rounded;
  }
  return buffer.data.get();
}

}  // namespace weft
