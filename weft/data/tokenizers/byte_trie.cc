#include "weft/data/tokenizers/byte_trie.h"

#include <algorithm>

namespace weft {

ByteTrie::ByteTrie(std::vector<Entry> entries) {
  first_.fill(nowhere);
  std::erase_if(entries, [](const Entry& entry) { return entry.text.empty(); });
  std::stable_sort(entries.begin(), entries.end(), [](const Entry& a, const Entry& b) { return a.text < b.text; });
  // Breadth first: a node stands for the sorted entries that share its bytes.
  struct Range {
    std::size_t begin, end, depth;
  };
  std::vector<Range> ranges = {{0, entries.size(), 0}};
  for (std::size_t node = 0; node < ranges.size(); ++node) {
    Range range = ranges[node];
    std::int32_t value = -1;
    for (; range.begin < range.end && entries[range.begin].text.size() == range.depth; ++range.begin)
      value = entries[range.begin].value;
    nodes_.push_back({static_cast<std::uint32_t>(edges_.size()), value});
    while (range.begin < range.end) {
      const auto byte = static_cast<unsigned char>(entries[range.begin].text[range.depth]);
      std::size_t end = range.begin;
      while (end < range.end && static_cast<unsigned char>(entries[end].text[range.depth]) == byte) ++end;
      const auto child = static_cast<std::uint32_t>(ranges.size());
      if (node == root) first_[byte] = child;
      edges_.push_back({child, byte});
      ranges.push_back({range.begin, end, range.depth + 1});
      range.begin = end;
    }
  }
  nodes_.push_back({static_cast<std::uint32_t>(edges_.size()), -1});
}

ByteTrie::Found ByteTrie::longest(std::string_view text, std::size_t at) const {
  Found found;
  std::uint32_t node = root;
  for (std::size_t i = at; i < text.size(); ++i) {
    node = child(node, text[i]);
    if (node == nowhere) break;
    if (value(node) >= 0) found = {value(node), i + 1 - at};
  }
  return found;
}

}  // namespace weft
