// Learns byte pair merges from words and how often they occur: again and again the most frequent pair becomes a token. Merges
// made so are consistent: every token can be reached.
#pragma once

#include <cstdint>
#include <queue>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

namespace weft {

struct LearnedMerges {
  std::vector<std::string> tokens;                            // bytes; the first 256 are the bytes
  std::vector<std::pair<std::int32_t, std::int32_t>> merges;  // of tokens; the first makes token 256
};

inline LearnedMerges learn_merges(const std::vector<std::pair<std::string, std::int64_t>>& words, std::size_t tokens) {
  LearnedMerges learned;
  for (int byte = 0; byte < 256; ++byte) learned.tokens.emplace_back(1, static_cast<char>(byte));
  struct Pair {
    std::int64_t count = 0;
    std::vector<std::uint32_t> words;  // in which it occurs, or once did
  };
  std::vector<std::vector<std::int32_t>> symbols;
  std::unordered_map<std::uint64_t, Pair> pairs;
  std::priority_queue<std::pair<std::int64_t, std::uint64_t>> queue;  // of counts that once were right
  const auto key_of = [](std::int32_t a, std::int32_t b) {
    return std::uint64_t{static_cast<std::uint32_t>(a)} << 32 | static_cast<std::uint32_t>(b);
  };
  const auto change = [&](std::size_t word, std::int64_t sign) {
    const std::vector<std::int32_t>& own = symbols[word];
    for (std::size_t i = 1; i < own.size(); ++i) {
      const std::uint64_t key = key_of(own[i - 1], own[i]);
      Pair& pair = pairs[key];
      pair.count += sign * words[word].second;
      if (sign < 0) continue;
      pair.words.push_back(static_cast<std::uint32_t>(word));
      queue.emplace(pair.count, key);
    }
  };
  for (std::size_t w = 0; w < words.size(); ++w) {
    symbols.emplace_back();
    for (unsigned char byte : words[w].first) symbols.back().push_back(byte);
    change(w, 1);
  }
  while (learned.tokens.size() < tokens && !queue.empty()) {
    const auto [count, key] = queue.top();
    queue.pop();
    Pair& pair = pairs[key];
    if (pair.count != count || count <= 0) {
      if (pair.count > 0 && pair.count < count) queue.emplace(pair.count, key);
      continue;
    }
    const auto left = static_cast<std::int32_t>(key >> 32), right = static_cast<std::int32_t>(key & 0xffffffff);
    const auto made = static_cast<std::int32_t>(learned.tokens.size());
    learned.tokens.push_back(learned.tokens[static_cast<std::size_t>(left)] +
                             learned.tokens[static_cast<std::size_t>(right)]);
    learned.merges.emplace_back(left, right);
    const std::vector<std::uint32_t> in = std::move(pair.words);
    for (std::uint32_t w : in) {
      std::vector<std::int32_t>& own = symbols[w];
      bool found = false;
      for (std::size_t i = 1; i < own.size() && !found; ++i) found = own[i - 1] == left && own[i] == right;
      if (!found) continue;
      change(w, -1);
      std::size_t kept = 0;
      for (std::size_t i = 0; i < own.size(); ++i, ++kept) {
        const bool here = i + 1 < own.size() && own[i] == left && own[i + 1] == right;
        own[kept] = here ? made : own[i];
        i += here;
      }
      own.resize(kept);
      change(w, 1);
    }
    pairs[key] = {};
  }
  return learned;
}

}  // namespace weft
