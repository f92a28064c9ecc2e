// Working memory of a thread for packed and converted operands. It is a library's fixed overhead, not part of a plan's
// arena: bounded by the block sizes of the kernels (stated where they are defined; some 16 MiB per thread, and for
// attention's backward the gradients of one kv head over one document besides), reused by every operation, and freed
// with the thread. Nothing is kept in it from one operation to the next.
#pragma once

#include <cstddef>

namespace weft {

enum class ScratchUse : unsigned char { left, right, result, plan, other, count };

// At least `bytes` bytes of the calling thread, aligned to a page of 4 KiB; valid until the thread's next call with the
// same use. Contents are undefined.
std::byte* thread_scratch(ScratchUse use, std::size_t bytes);
inline void* thread_scratch(std::size_t bytes) { return thread_scratch(ScratchUse::other, bytes); }

}  // namespace weft
