// The file of a SentencePiece model: a message of Protocol Buffers, read field by field.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace weft {

struct SentencePiece {
  enum class Type : std::uint8_t { normal = 1, unknown = 2, control = 3, user_defined = 4, unused = 5, byte = 6 };
  std::string text;
  float score = 0;
  Type type = Type::normal;
};

struct SentencePieceModel {
  enum class Kind : std::uint8_t { unigram = 1, bpe = 2, word = 3, character = 4 };
  std::vector<SentencePiece> pieces;
  Kind kind = Kind::unigram;
  bool byte_fallback = false, whitespace_as_suffix = false;
  std::string unknown_surface = " \xe2\x81\x87 ", end_piece = "</s>";
  std::string character_map;  // precompiled
  bool add_dummy_prefix = true, remove_extra_whitespaces = true, escape_whitespaces = true;
};

// UserError "WHERE: ..." for bytes that are no such message, and for pieces that cannot be used.
SentencePieceModel parse_sentencepiece_model(std::string_view bytes, const std::string& where);

}  // namespace weft
