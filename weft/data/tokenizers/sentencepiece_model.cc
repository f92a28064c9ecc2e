#include "weft/data/tokenizers/sentencepiece_model.h"

#include <bit>
#include <cmath>
#include <cstring>
#include <optional>
#include <unordered_set>

#include "weft/base/error.h"
#include "weft/data/tokenizers/utf8.h"

namespace weft {

namespace {

// The fields of one message, in the order of its bytes.
class Message {
 public:
  struct Field {
    std::uint64_t number = 0;
    int wire = 0;
    std::uint64_t value = 0;  // of wire types 0, 1 and 5
    std::string_view bytes;   // of wire type 2
  };

  // `offset`: where the message is in the file, for messages of errors.
  Message(std::string_view bytes, std::size_t offset, const std::string& where)
      : bytes_(bytes), offset_(offset), where_(where) {}

  std::optional<Field> next() {
    if (at_ == bytes_.size()) return std::nullopt;
    Field field;
    const std::uint64_t tag = varint();
    field.number = tag >> 3;
    field.wire = static_cast<int>(tag & 7);
    if (field.number == 0) fail("a field has the number 0");
    if (field.wire == 0) {
      field.value = varint();
    } else if (field.wire == 1) {
      field.value = fixed(8);
    } else if (field.wire == 5) {
      field.value = fixed(4);
    } else if (field.wire == 2) {
      const std::uint64_t size = varint();
      if (size > bytes_.size() - at_) fail("a field is longer than what is left");
      begin_ = at_;
      field.bytes = bytes_.substr(at_, static_cast<std::size_t>(size));
      at_ += static_cast<std::size_t>(size);
    } else {
      fail("a field has an unknown kind");
    }
    return field;
  }
  // The field read last, a message of its own.
  Message inner(const Field& field) const {
    require(field, 2);
    return Message(field.bytes, offset_ + begin_, where_);
  }
  void require(const Field& field, int wire) const {
    if (field.wire != wire) fail("a field is of another kind than SentencePiece's");
  }
  std::string text(const Field& field) const {
    require(field, 2);
    return std::string(field.bytes);
  }
  bool flag(const Field& field) const {
    require(field, 0);
    return field.value != 0;
  }
  [[noreturn]] void fail(const char* what) const {
    throw UserError("{}: not a SentencePiece model: {} (byte {})", where_, what, offset_ + at_);
  }

 private:
  std::uint64_t varint() {
    std::uint64_t value = 0;
    for (int shift = 0; shift < 64; shift += 7) {
      if (at_ == bytes_.size()) fail("it ends within a number");
      const auto byte = static_cast<unsigned char>(bytes_[at_++]);
      value |= std::uint64_t{byte & 0x7fu} << shift;
      if (byte < 0x80) return value;
    }
    fail("a number has more than ten bytes");
  }
  std::uint64_t fixed(std::size_t size) {
    if (size > bytes_.size() - at_) fail("it ends within a number");
    std::uint64_t value = 0;
    std::memcpy(&value, bytes_.data() + at_, size);
    at_ += size;
    return value;
  }

  std::string_view bytes_;
  std::size_t offset_, at_ = 0, begin_ = 0;
  const std::string& where_;
};

SentencePiece read_piece(Message message) {
  SentencePiece piece;
  while (const auto field = message.next()) {
    if (field->number == 1) piece.text = message.text(*field);
    if (field->number == 2) {
      message.require(*field, 5);
      piece.score = std::bit_cast<float>(static_cast<std::uint32_t>(field->value));
      if (!std::isfinite(piece.score)) message.fail("a score is not finite");
    }
    if (field->number == 3) {
      message.require(*field, 0);
      if (field->value < 1 || field->value > 6) message.fail("a piece has an unknown type");
      piece.type = static_cast<SentencePiece::Type>(field->value);
    }
  }
  if (piece.text.empty()) message.fail("a piece is empty");
  if (first_invalid_utf8(piece.text) != std::string::npos) message.fail("a piece is not UTF-8");
  return piece;
}

void read_trainer(Message message, SentencePieceModel& model) {
  while (const auto field = message.next()) {
    if (field->number == 3) {
      message.require(*field, 0);
      if (field->value < 1 || field->value > 4) message.fail("the model is of an unknown kind");
      model.kind = static_cast<SentencePieceModel::Kind>(field->value);
    }
    if (field->number == 24) model.whitespace_as_suffix = message.flag(*field);
    if (field->number == 35) model.byte_fallback = message.flag(*field);
    if (field->number == 44) model.unknown_surface = message.text(*field);
    if (field->number == 47) model.end_piece = message.text(*field);
  }
}

void read_normalizer(Message message, SentencePieceModel& model) {
  while (const auto field = message.next()) {
    if (field->number == 2) model.character_map = message.text(*field);
    if (field->number == 3) model.add_dummy_prefix = message.flag(*field);
    if (field->number == 4) model.remove_extra_whitespaces = message.flag(*field);
    if (field->number == 5) model.escape_whitespaces = message.flag(*field);
  }
}

void check(const SentencePieceModel& model, const std::string& where) {
  std::unordered_set<std::string_view> texts;
  std::size_t unknown = 0, bytes = 0;
  for (const SentencePiece& piece : model.pieces) {
    unknown += piece.type == SentencePiece::Type::unknown;
    bytes += piece.type == SentencePiece::Type::byte;
    if (!texts.insert(piece.text).second) throw UserError("{}: the piece \"{}\" occurs twice", where, piece.text);
  }
  if (model.pieces.empty()) throw UserError("{}: not a SentencePiece model: it has no pieces", where);
  if (unknown != 1) throw UserError("{}: has {} pieces for what is unknown; it must be one", where, unknown);
  if (model.byte_fallback && bytes != 256)
    throw UserError("{}: has {} pieces for bytes; byte fallback needs 256", where, bytes);
  if (model.kind == SentencePieceModel::Kind::word || model.kind == SentencePieceModel::Kind::character)
    throw UserError("{}: Weft reads SentencePiece models of kind BPE and unigram; this one is of words or characters",
                    where);
}

}  // namespace

SentencePieceModel parse_sentencepiece_model(std::string_view bytes, const std::string& where) {
  SentencePieceModel model;
  Message message(bytes, 0, where);
  while (const auto field = message.next()) {
    if (field->number == 1) model.pieces.push_back(read_piece(message.inner(*field)));
    if (field->number == 2) read_trainer(message.inner(*field), model);
    if (field->number == 3) read_normalizer(message.inner(*field), model);
    if (field->number == 5) {  // a denormalizer's rules; an empty one has none
      SentencePieceModel after;
      read_normalizer(message.inner(*field), after);
      if (!after.character_map.empty()) throw UserError("{}: Weft has no denormalizer for SentencePiece", where);
    }
  }
  check(model, where);
  return model;
}

}  // namespace weft
