#include <algorithm>
#include <span>
#include <vector>

#include "weft/base/error.h"
#include "weft/checkpoint/torch_dist/dcp_metadata.h"

namespace weft {
namespace {

std::size_t at(int dim) { return static_cast<std::size_t>(dim); }

std::string text_of(const Box& box) {
  std::string begin;
  for (int d = 0; d < box.extent.dims(); ++d) begin += fmt::format("{}{}", d > 0 ? ", " : "", box.begin[at(d)]);
  return fmt::format("{} from [{}] on", to_text(box.extent), begin);
}

bool overlap(const Box& a, const Box& b) {
  for (int d = 0; d < a.extent.dims(); ++d) {
    if (a.begin[at(d)] >= b.begin[at(d)] + b.extent[d] || b.begin[at(d)] >= a.begin[at(d)] + a.extent[d]) return false;
  }
  return true;
}

// Chunks come from cutting along dims, so a region can nearly always be cut where no chunk is, and its parts so again. That
// takes n log n steps for each level; comparing all pairs, n^2, is left for the regions that cannot.
class Tiling {
 public:
  Tiling(const Shape& shape, const std::string& where) : shape_(shape), where_(where) {}

  void check(const Box& region, std::span<const Box*> chunks, int depth) const {
    if (chunks.size() == 1) {
      if (*chunks[0] != region) fail_hole(region);
      return;
    }
    // Real ones are cut once in each dim, or some times more.
    if (depth > 32) fail_unusual(chunks.size());
    for (int d = 0; d < shape_.dims(); ++d)
      if (cut(region, chunks, d, depth)) return;
    check_pairs(region, chunks);
  }

 private:
  [[noreturn]] void fail_hole(const Box& region) const {
    throw UserError("{}: its chunks do not tile its shape {}: of {} some elements are in no chunk", where_,
                    to_text(shape_), text_of(region));
  }
  [[noreturn]] void fail_unusual(std::size_t chunks) const {
    throw UserError("{}: {} of its chunks lie so irregularly that Weft does not check whether they tile its shape {}",
                    where_, chunks, to_text(shape_));
  }

  static Box slab(Box region, int dim, std::int64_t begin, std::int64_t end) {
    region.begin[at(dim)] = begin;
    Shape extent;
    for (int d = 0; d < region.extent.dims(); ++d) extent.append(d == dim ? end - begin : region.extent[d]);
    region.extent = extent;
    return region;
  }

  // False: every plane across `dim` goes through a chunk.
  bool cut(const Box& region, std::span<const Box*> chunks, int dim, int depth) const {
    const auto begin = [&](const Box* chunk) { return chunk->begin[at(dim)]; };
    std::sort(chunks.begin(), chunks.end(), [&](const Box* a, const Box* b) { return begin(a) < begin(b); });
    std::vector<std::size_t> parts{0};  // first chunk of each
    std::int64_t end = begin(chunks[0]) + chunks[0]->extent[dim];
    for (std::size_t i = 1; i < chunks.size(); ++i) {
      if (begin(chunks[i]) >= end) parts.push_back(i);
      end = std::max(end, begin(chunks[i]) + chunks[i]->extent[dim]);
    }
    if (parts.size() == 1) return false;
    parts.push_back(chunks.size());
    for (std::size_t p = 0; p + 1 < parts.size(); ++p) {
      const bool first = p == 0, last = p + 2 == parts.size();
      const std::int64_t from = first ? region.begin[at(dim)] : begin(chunks[parts[p]]);
      const std::int64_t to = last ? region.begin[at(dim)] + region.extent[dim] : begin(chunks[parts[p + 1]]);
      check(slab(region, dim, from, to), chunks.subspan(parts[p], parts[p + 1] - parts[p]), depth + 1);
    }
    return true;
  }

  void check_pairs(const Box& region, std::span<const Box*> chunks) const {
    std::int64_t elements = 0;
    for (std::size_t i = 0; i < chunks.size(); ++i) {
      for (std::size_t j = 0; j < i; ++j) {
        if (overlap(*chunks[i], *chunks[j])) {
          throw UserError("{}: two of its chunks overlap: {} and {}", where_, text_of(*chunks[j]), text_of(*chunks[i]));
        }
      }
      elements += chunks[i]->extent.elements();
      if (i == 4096) fail_unusual(chunks.size());
    }
    if (elements != region.extent.elements()) fail_hole(region);
  }

  const Shape& shape_;
  const std::string& where_;
};

}  // namespace

void check_tiling(const Shape& shape, const std::vector<TensorChunk>& chunks, const std::string& where) {
  std::vector<const Box*> boxes;
  for (const TensorChunk& chunk : chunks) boxes.push_back(&chunk.box);
  if (shape.elements() == 0) return;
  if (boxes.empty()) throw UserError("{}: has the shape {} and no chunks", where, to_text(shape));
  Tiling(shape, where).check(Box::whole(shape), boxes, 0);
}

}  // namespace weft
