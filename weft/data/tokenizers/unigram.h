// The unigram model of SentencePiece: of all ways to write a text as pieces, the one with the highest sum of scores.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "weft/data/tokenizers/byte_trie.h"

namespace weft {

class Unigram {
 public:
  struct Piece {
    std::string_view text;
    std::int32_t id;
    float score;
    bool user_defined;  // is taken wherever it occurs
  };
  struct Scratch {
    struct Place {  // the best way to get there
      float score = 0;
      std::int32_t id = -1, begin = -1;
    };
    std::vector<Place> places;
    std::vector<std::int32_t> path;
  };
  // `lowest`, `highest`: scores of normal pieces. `size`: ids are below it.
  Unigram(const std::vector<Piece>& pieces, std::int64_t size, std::int32_t unknown, float lowest, float highest);

  // Calls take(id, begin, end) for the pieces of a text of less than 2^31 bytes, from left to right.
  template <class Take>
  void encode(std::string_view text, Scratch& scratch, Take&& take) const {
    find_path(text, scratch);
    for (auto end = scratch.path.rbegin(); end != scratch.path.rend(); ++end) {
      const Scratch::Place& place = scratch.places[static_cast<std::size_t>(*end)];
      take(place.id, static_cast<std::size_t>(place.begin), static_cast<std::size_t>(*end));
    }
  }

 private:
  void find_path(std::string_view text, Scratch& scratch) const;

  ByteTrie trie_;
  std::vector<float> scores_;       // by id
  std::vector<bool> user_defined_;  // by id
  std::int32_t unknown_;
  float unknown_score_, highest_;
};

}  // namespace weft
