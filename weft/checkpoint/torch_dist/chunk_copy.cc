#include "weft/checkpoint/torch_dist/chunk_copy.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "weft/base/file.h"

namespace weft {
namespace {

using Index = std::array<std::int64_t, Shape::max_dims>;
constexpr std::int64_t give_back_step = std::int64_t{16} << 20;  // bytes

std::size_t at(int dim) { return static_cast<std::size_t>(dim); }

Index row_major(const Shape& shape) {
  Index strides{};
  std::int64_t stride = 1;
  for (int d = shape.dims() - 1; d >= 0; --d) {
    strides[at(d)] = stride;
    stride *= shape[d];
  }
  return strides;
}

}  // namespace

std::optional<Box> intersection(const Box& a, const Box& b) {
  Box shared;
  for (int d = 0; d < a.extent.dims(); ++d) {
    const std::int64_t begin = std::max(a.begin[at(d)], b.begin[at(d)]);
    const std::int64_t end = std::min(a.begin[at(d)] + a.extent[d], b.begin[at(d)] + b.extent[d]);
    if (begin >= end) return std::nullopt;
    shared.begin[at(d)] = begin;
    shared.extent.append(end - begin);
  }
  return shared;
}

void copy_shared(const SavedTensor& saved, const Box& chunk, const Box& wanted, std::byte* out, Pages pages) {
  const std::optional<Box> shared = intersection(chunk, wanted);
  if (!shared) return;
  const auto size = static_cast<std::int64_t>(bits_of(saved.type) / 8);
  const Index out_strides = row_major(wanted.extent);
  const int dims = shared->extent.dims();
  const std::byte* from = saved.data;
  for (int d = 0; d < dims; ++d) {
    from += (shared->begin[at(d)] - chunk.begin[at(d)]) * saved.strides[at(d)] * size;
    out += (shared->begin[at(d)] - wanted.begin[at(d)]) * out_strides[at(d)] * size;
  }
  // The inner dims that lie alike on both sides are one run.
  int outer = dims;
  std::int64_t run = 1;
  while (outer > 0 && (shared->extent[outer - 1] == 1 ||
                       (saved.strides[at(outer - 1)] == run && out_strides[at(outer - 1)] == run))) {
    run *= shared->extent[--outer];
  }
  const std::byte* kept = from;  // pages from here on may be in memory
  const auto give_back = [&](const std::byte* to, std::int64_t least) {
    if (pages != Pages::give_back || to - kept < least) return;
    forget_pages({kept, to});
    kept = to;
  };
  Index index{};
  for (;;) {
    std::int64_t source = 0, target = 0;
    for (int d = 0; d < outer; ++d) {
      source += index[at(d)] * saved.strides[at(d)];
      target += index[at(d)] * out_strides[at(d)];
    }
    for (std::int64_t done = 0; done < run * size; done += give_back_step) {
      const std::int64_t step = std::min(give_back_step, run * size - done);
      std::memcpy(out + target * size + done, from + source * size + done, static_cast<std::size_t>(step));
      give_back(from + source * size + done + step, give_back_step);
    }
    int d = outer - 1;
    while (d >= 0 && ++index[at(d)] == shared->extent[d]) index[at(d--)] = 0;
    if (d < 0) break;
  }
  give_back(saved.storage->bytes.data() + saved.storage->bytes.size(), 0);
}

}  // namespace weft
