#include "tests/checkpoint/torch_dist/counted_memory.h"

#include <algorithm>
#include <cstdlib>
#include <new>

#include <malloc.h>

namespace {

// Of this thread; operator new has no other place to keep them.
thread_local std::ptrdiff_t held = 0, most = 0;

}  // namespace

void* operator new(std::size_t size) {
  void* const memory = std::malloc(std::max<std::size_t>(size, 1));
  if (memory == nullptr) throw std::bad_alloc();
  held += static_cast<std::ptrdiff_t>(malloc_usable_size(memory));
  most = std::max(most, held);
  return memory;
}

// std::stable_sort takes its memory so.
void* operator new(std::size_t size, const std::nothrow_t&) noexcept {
  try {
    return operator new(size);
  } catch (const std::bad_alloc&) {
    return nullptr;
  }
}

void operator delete(void* memory) noexcept {
  if (memory != nullptr) held -= static_cast<std::ptrdiff_t>(malloc_usable_size(memory));
  std::free(memory);
}

void operator delete(void* memory, std::size_t) noexcept { operator delete(memory); }

namespace weft {

CountedMemory::CountedMemory() : before_(held) { most = held; }

std::size_t CountedMemory::peak() const { return static_cast<std::size_t>(most - before_); }

}  // namespace weft
