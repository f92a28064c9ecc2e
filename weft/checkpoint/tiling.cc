#include "weft/checkpoint/tiling.h"

#include <algorithm>
#include <span>

#include "weft/base/error.h"

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

// Boxes come from cutting along dims, so a region can nearly always be cut where no box is, and its parts so again. That
// takes n log n steps for each level; comparing all pairs, n^2, is left for the regions that cannot.
class Tiling {
 public:
  Tiling(const Shape& shape, const std::string& where, std::string_view noun)
      : shape_(shape), where_(where), noun_(noun) {}

  void check(const Box& region, std::span<const Box*> boxes, int depth) const {
    if (boxes.size() == 1) {
      if (*boxes[0] != region) fail_hole(region);
      return;
    }
    // Real ones are cut once in each dim, or some times more.
    if (depth > 32) fail_unusual(boxes.size());
    for (int d = 0; d < shape_.dims(); ++d)
      if (cut(region, boxes, d, depth)) return;
    check_pairs(region, boxes);
  }

 private:
  [[noreturn]] void fail_hole(const Box& region) const {
    throw UserError("{}: its {} do not tile its shape {}: of {} some elements are in none", where_, noun_,
                    to_text(shape_), text_of(region));
  }
  [[noreturn]] void fail_unusual(std::size_t boxes) const {
    throw UserError("{}: {} of its {} lie so irregularly that Weft does not check whether they tile its shape {}",
                    where_, boxes, noun_, to_text(shape_));
  }

  static Box slab(Box region, int dim, std::int64_t begin, std::int64_t end) {
    region.begin[at(dim)] = begin;
    Shape extent;
    for (int d = 0; d < region.extent.dims(); ++d) extent.append(d == dim ? end - begin : region.extent[d]);
    region.extent = extent;
    return region;
  }

  // False: every plane across `dim` goes through a box.
  bool cut(const Box& region, std::span<const Box*> boxes, int dim, int depth) const {
    const auto begin = [&](const Box* box) { return box->begin[at(dim)]; };
    std::sort(boxes.begin(), boxes.end(), [&](const Box* a, const Box* b) { return begin(a) < begin(b); });
    std::vector<std::size_t> parts{0};  // first box of each
    std::int64_t end = begin(boxes[0]) + boxes[0]->extent[dim];
    for (std::size_t i = 1; i < boxes.size(); ++i) {
      if (begin(boxes[i]) >= end) parts.push_back(i);
      end = std::max(end, begin(boxes[i]) + boxes[i]->extent[dim]);
    }
    if (parts.size() == 1) return false;
    parts.push_back(boxes.size());
    for (std::size_t p = 0; p + 1 < parts.size(); ++p) {
      const bool first = p == 0, last = p + 2 == parts.size();
      const std::int64_t from = first ? region.begin[at(dim)] : begin(boxes[parts[p]]);
      const std::int64_t to = last ? region.begin[at(dim)] + region.extent[dim] : begin(boxes[parts[p + 1]]);
      check(slab(region, dim, from, to), boxes.subspan(parts[p], parts[p + 1] - parts[p]), depth + 1);
    }
    return true;
  }

  void check_pairs(const Box& region, std::span<const Box*> boxes) const {
    std::int64_t elements = 0;
    for (std::size_t i = 0; i < boxes.size(); ++i) {
      for (std::size_t j = 0; j < i; ++j) {
        if (overlap(*boxes[i], *boxes[j])) {
          throw UserError("{}: two of its {} overlap: {} and {}", where_, noun_, text_of(*boxes[j]),
                          text_of(*boxes[i]));
        }
      }
      elements += boxes[i]->extent.elements();
      if (i == 4096) fail_unusual(boxes.size());
    }
    if (elements != region.extent.elements()) fail_hole(region);
  }

  const Shape& shape_;
  const std::string& where_;
  std::string_view noun_;
};

}  // namespace

void check_tiling(const Shape& shape, std::vector<const Box*> boxes, const std::string& where, std::string_view noun) {
  std::erase_if(boxes, [](const Box* b) { return b->extent.elements() == 0; });
  if (shape.elements() == 0) return;
  if (boxes.empty()) throw UserError("{}: has the shape {} and no {}", where, to_text(shape), noun);
  Tiling(shape, where, noun).check(Box::whole(shape), boxes, 0);
}

}  // namespace weft
