#include "weft/data/tokenizers/merge_table.h"

#include <bit>

namespace weft {

MergeTable::MergeTable(std::span<const Merge> merges) {
  slots_.resize(std::bit_ceil(2 * merges.size() + 2));
  mask_ = slots_.size() - 1;
  for (const Merge& merge : merges) {
    const std::uint64_t pair = pair_of(merge.left, merge.right);
    std::size_t i = place_of(pair);
    while (slots_[i].pair != no_pair && slots_[i].pair != pair) i = (i + 1) & mask_;
    slots_[i] = {pair, merge.rank, merge.result};
  }
}

}  // namespace weft
