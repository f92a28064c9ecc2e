// Byte pair encoding: a piece of text is cut into bytes or characters, and of all neighbours that a merge joins, those of
// the lowest rank are joined, until none are left.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>
#include <vector>

#include "weft/data/tokenizers/merge_table.h"
#include "weft/data/tokenizers/vocabulary.h"

namespace weft {

struct BpeRules {
  bool of_bytes = false;            // the vocabulary's texts are bytes, not characters
  bool ignore_merges = false;       // a piece that is a token stays one, whatever the merges
  bool fuse_unknown = false;        // neighbours that are no token become one unknown token
  std::int32_t unknown = no_token;  // no_token: what is no token is left out
  std::array<std::int32_t, 256> byte_tokens =
      {};  // <0x00> ...: a character that is no token becomes these, if there are all
  BpeRules() { byte_tokens.fill(no_token); }
};

class Bpe {
 public:
  // What a thread keeps between pieces: words that it has met, and room to work in. Serves one Bpe.
  class Scratch {
   public:
    Scratch();

   private:
    friend class Bpe;
    static constexpr std::size_t longest = 28, most = 8, slots = std::size_t{1} << 15;
    struct alignas(64) Word {  // one line of the processor's cache
      std::uint16_t size = 0;  // bytes; 0: the slot is free
      std::uint16_t count = 0;
      std::array<char, longest> bytes;
      std::array<std::int32_t, most> ids;
    };
    struct Candidate {
      std::uint32_t rank;
      std::uint32_t at;
    };
    std::vector<Word> words_;
    std::vector<std::int32_t> symbols_, results_;
    std::vector<std::uint32_t> ranks_, next_, previous_;
    std::vector<Candidate> heap_;
  };

  // The merges' ids are in the vocabulary, which outlives this.
  Bpe(const Vocabulary& vocabulary, const std::vector<Merge>& merges, const BpeRules& rules);

  // Appends the ids of a piece: valid UTF-8, of less than 2^32 bytes.
  void encode(std::string_view piece, Scratch& scratch, std::vector<std::int32_t>& ids) const;

 private:
  bool separates_at_spaces(const std::vector<Merge>& merges) const;
  void encode_word(std::string_view word, Scratch& scratch, std::vector<std::int32_t>& ids) const;
  void cut(std::string_view word, std::vector<std::int32_t>& symbols) const;
  void merge_few(Scratch& scratch) const;
  void merge_many(Scratch& scratch) const;

  const Vocabulary* vocabulary_;
  MergeTable merges_;
  BpeRules rules_;
  std::array<std::int32_t, 256> byte_ids_ = {};  // of bytes that are symbols of their own
  bool has_byte_tokens_ = false;
  bool separate_ = false;  // no merge crosses the beginning of a run of U+2581: words are encoded one by one
};

}  // namespace weft
