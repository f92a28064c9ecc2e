// Texts -> values, as a tree of bytes in flat arrays: for finding which of many texts begins at a place.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>
#include <vector>

namespace weft {

class ByteTrie {
 public:
  struct Entry {
    std::string_view text;
    std::int32_t value;  // not negative
  };
  struct Found {
    std::int32_t value = -1;
    std::size_t size = 0;  // bytes; 0: none of the texts
  };
  static constexpr std::uint32_t root = 0, nowhere = 0xffffffff;

  ByteTrie() : ByteTrie(std::vector<Entry>()) {}
  // Empty texts are left out; of equal ones the last counts.
  explicit ByteTrie(std::vector<Entry> entries);

  bool empty() const { return edges_.empty(); }
  bool may_begin_with(char c) const { return first_[static_cast<unsigned char>(c)] != nowhere; }
  // The node that a byte leads to.
  std::uint32_t child(std::uint32_t node, char c) const {
    const auto byte = static_cast<unsigned char>(c);
    if (node == root) return first_[byte];
    for (std::uint32_t e = nodes_[node].edges; e < nodes_[node + 1].edges && edges_[e].byte <= byte; ++e)
      if (edges_[e].byte == byte) return edges_[e].node;
    return nowhere;
  }
  std::int32_t value(std::uint32_t node) const { return nodes_[node].value; }  // -1: no text ends here
  // The longest text that begins at `at`.
  Found longest(std::string_view text, std::size_t at) const;

 private:
  struct Node {
    std::uint32_t edges;  // the first of the node's; those of the next node follow
    std::int32_t value;
  };
  struct Edge {
    std::uint32_t node;
    unsigned char byte;
  };
  std::array<std::uint32_t, 256> first_;
  std::vector<Node> nodes_;
  std::vector<Edge> edges_;
};

}  // namespace weft
