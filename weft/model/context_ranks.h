// The ranks that divide the tokens of every sample, as layers and inputs see them.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "weft/grid/layout.h"

namespace weft {

// How context ranks do attention: what they send each other. `M`, `G` and `D` always exchange heads for tokens.
enum class ContextTransfer : std::uint8_t {
  p2p,         // keys and values go round, from rank to rank
  all_gather,  // every rank gets all keys and values
  a2a,         // every rank gets all tokens of some heads
  a2a_p2p,     // a2a among neighbours, p2p among those with the same heads (Layout::head_ranks, ring_ranks)
};

// A sequence is cut into 2 x size strips of equal length; rank r has strips r and 2 size - 1 - r, in this order. So all ranks
// have as much to do in causal attention.
struct ContextRanks {
  std::int64_t size = 1, rank = 0;
  GroupId group;

  static ContextRanks of(const Layout& layout) {
    const GroupId group = layout.context_ranks();
    return {layout.size_of(group), layout.position_in(group), group};
  }
  bool divide() const { return size > 1; }
  // Of the batch's tokens (batch x length), which is token `here` of those that rank `of` has; they ascend.
  std::int64_t token(std::int64_t of, std::int64_t here, std::int64_t length) const {
    const std::int64_t each = length / size, strip = each / 2, at = here % each;
    const std::int64_t first = at < strip ? of * strip : (2 * size - 2 - of) * strip;
    return size == 1 ? here : here / each * length + first + at;
  }
  std::vector<std::int64_t> tokens(std::int64_t of, std::int64_t batch, std::int64_t length) const {
    std::vector<std::int64_t> all(static_cast<std::size_t>(batch * length / size));
    for (std::size_t t = 0; t < all.size(); ++t) all[t] = token(of, static_cast<std::int64_t>(t), length);
    return all;
  }
};

// Ranks that send each other tokens or keys, and the tokens that each of them has, ascending.
struct TokenRanks {
  std::int64_t size = 1, rank = 0;
  GroupId group;
  std::vector<std::vector<std::int64_t>> tokens;

  // All context ranks.
  static TokenRanks all(const Layout& layout, std::int64_t batch, std::int64_t length) {
    const ContextRanks c = ContextRanks::of(layout);
    TokenRanks made{c.size, c.rank, c.group, {}};
    for (std::int64_t r = 0; r < c.size; ++r) made.tokens.push_back(c.tokens(r, batch, length));
    return made;
  }
  // Those that exchange heads for tokens in a2a_p2p: neighbours.
  static TokenRanks of_heads(const Layout& layout, std::int64_t batch, std::int64_t length) {
    const ContextRanks c = ContextRanks::of(layout);
    const GroupId group = layout.head_ranks();
    TokenRanks made{layout.size_of(group), layout.position_in(group), group, {}};
    for (std::int64_t r = 0; r < made.size; ++r) made.tokens.push_back(c.tokens(c.rank - made.rank + r, batch, length));
    return made;
  }
  // Those that have the same heads then: each has the tokens of its neighbours, too.
  static TokenRanks of_ring(const Layout& layout, std::int64_t batch, std::int64_t length) {
    const ContextRanks c = ContextRanks::of(layout);
    const std::int64_t neighbours = layout.size_of(layout.head_ranks());
    const GroupId group = layout.ring_ranks();
    TokenRanks made{layout.size_of(group), layout.position_in(group), group, {}};
    for (std::int64_t r = 0; r < made.size; ++r) {
      std::vector<std::int64_t>& tokens = made.tokens.emplace_back();
      for (std::int64_t n = 0; n < neighbours; ++n) {
        const std::vector<std::int64_t> some = c.tokens(r * neighbours + n, batch, length);
        tokens.insert(tokens.end(), some.begin(), some.end());
      }
      std::sort(tokens.begin(), tokens.end());
    }
    return made;
  }

  const std::vector<std::int64_t>& here() const { return tokens[static_cast<std::size_t>(rank)]; }
  // Those of all ranks, ascending; and rank after rank.
  std::vector<std::int64_t> in_order() const {
    std::vector<std::int64_t> joined = by_rank();
    std::sort(joined.begin(), joined.end());
    return joined;
  }
  std::vector<std::int64_t> by_rank() const {
    std::vector<std::int64_t> joined;
    for (const auto& of : tokens) joined.insert(joined.end(), of.begin(), of.end());
    return joined;
  }
  std::int64_t count() const { return size * static_cast<std::int64_t>(here().size()); }
};

}  // namespace weft
