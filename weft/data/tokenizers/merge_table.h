// Which two tokens, side by side, become which one, and which of several pairs goes first.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "weft/data/tokenizers/vocabulary.h"

namespace weft {

struct Merge {
  std::int32_t left = 0, right = 0, result = 0;
  std::uint32_t rank = 0;  // the lowest goes first; equal ones from left to right
};

class MergeTable {
 public:
  static constexpr std::uint32_t never = 0xffffffff;  // the rank of a pair that is not in the table
  struct Found {
    std::uint32_t rank = never;
    std::int32_t result = no_token;
  };

  MergeTable() : MergeTable(std::span<const Merge>()) {}
  // Of merges of one pair the last counts. Ids are not negative.
  explicit MergeTable(std::span<const Merge> merges);

  Found find(std::int32_t left, std::int32_t right) const {
    const std::uint64_t pair = pair_of(left, right);
    for (std::size_t i = place_of(pair);; i = (i + 1) & mask_) {
      const Slot& slot = slots_[i];
      if (slot.pair == pair) return {slot.rank, slot.result};
      if (slot.pair == no_pair) return {};
    }
  }

 private:
  struct Slot {
    std::uint64_t pair = no_pair;
    std::uint32_t rank = never;
    std::int32_t result = no_token;
  };
  static constexpr std::uint64_t no_pair = ~std::uint64_t{0};
  static std::uint64_t pair_of(std::int32_t left, std::int32_t right) {
    return std::uint64_t{static_cast<std::uint32_t>(left)} << 32 | static_cast<std::uint32_t>(right);
  }
  std::size_t place_of(std::uint64_t pair) const {
    const std::uint64_t spread = pair * 0x9e3779b97f4a7c15u;
    return static_cast<std::size_t>(spread ^ spread >> 32) & mask_;
  }

  std::vector<Slot> slots_;
  std::size_t mask_ = 0;
};

}  // namespace weft
