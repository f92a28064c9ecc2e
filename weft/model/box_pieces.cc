#include "weft/model/box_pieces.h"

#include <algorithm>

#include "weft/base/error.h"

namespace weft {

std::vector<Box> pieces_of(const Box& box, std::int64_t most) {
  WEFT_CHECK(most > 0, "pieces of {} elements", most);
  const int dims = box.extent.dims();
  if (box.extent.elements() == 0) return {};
  // A piece has one index of every dim before `cut`, a range of that one, and all of the dims after it.
  int cut = dims;
  std::int64_t inner = 1;  // elements of one index of `cut`
  while (cut > 0 && inner * box.extent[cut - 1] <= most) inner *= box.extent[--cut];
  if (cut == 0) return {box};
  --cut;
  const std::int64_t whole = box.extent[cut], range = most / inner;
  const std::int64_t outer = box.extent.elements() / inner / whole;
  std::vector<Box> pieces;
  for (std::int64_t o = 0; o < outer; ++o) {
    for (std::int64_t first = 0; first < whole; first += range) {
      Box piece{box.begin, {}};
      for (int d = 0; d < dims; ++d)
        piece.extent.append(d < cut ? 1 : d == cut ? std::min(range, whole - first) : box.extent[d]);
      std::int64_t rest = o;
      for (int d = cut - 1; d >= 0; --d) {
        piece.begin[static_cast<std::size_t>(d)] += rest % box.extent[d];
        rest /= box.extent[d];
      }
      piece.begin[static_cast<std::size_t>(cut)] += first;
      pieces.push_back(piece);
    }
  }
  return pieces;
}

}  // namespace weft
