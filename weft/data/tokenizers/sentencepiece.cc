#include "weft/data/tokenizers/sentencepiece.h"

#include <algorithm>
#include <limits>
#include <optional>
#include <variant>

#include "weft/base/error.h"
#include "weft/base/file.h"
#include "weft/data/tokenizers/bpe.h"
#include "weft/data/tokenizers/decoder.h"
#include "weft/data/tokenizers/precompiled_rules.h"
#include "weft/data/tokenizers/sentencepiece_model.h"
#include "weft/data/tokenizers/unigram.h"
#include "weft/data/tokenizers/utf8.h"

namespace weft {

namespace {

constexpr std::string_view space_symbol = "\xe2\x96\x81";  // U+2581
using Type = SentencePiece::Type;

bool in_text(Type type) { return type == Type::normal || type == Type::user_defined; }

Vocabulary vocabulary_of(const SentencePieceModel& model, const std::string& where) {
  std::vector<Vocabulary::Entry> entries;
  for (std::size_t i = 0; i < model.pieces.size(); ++i)
    entries.push_back({model.pieces[i].text, static_cast<std::int32_t>(i), in_text(model.pieces[i].type)});
  return Vocabulary(entries, where);
}

// Two pieces are joined where the result is a piece; the one with the highest score goes first.
std::vector<Merge> merges_of(const SentencePieceModel& model, const Vocabulary& vocabulary, const std::string& where) {
  std::vector<float> scores;
  for (const SentencePiece& piece : model.pieces) scores.push_back(piece.score);
  std::sort(scores.begin(), scores.end(), std::greater<>());
  scores.erase(std::unique(scores.begin(), scores.end()), scores.end());
  std::vector<Merge> merges;
  for (std::size_t i = 0; i < model.pieces.size(); ++i) {
    const SentencePiece& piece = model.pieces[i];
    if (!in_text(piece.type)) continue;
    if (piece.text.size() > longest_cut_token)
      throw UserError("{}: the piece {} has {} bytes; Weft reads pieces of at most {}", where, i, piece.text.size(),
                      longest_cut_token);
    const auto rank = static_cast<std::uint32_t>(
        std::lower_bound(scores.begin(), scores.end(), piece.score, std::greater<>()) - scores.begin());
    const std::string_view text = piece.text;
    for (std::size_t at = character_size(text[0]); at < text.size(); at += character_size(text[at])) {
      const std::int32_t left = vocabulary.find(text.substr(0, at)), right = vocabulary.find(text.substr(at));
      if (left != no_token && right != no_token) merges.push_back({left, right, static_cast<std::int32_t>(i), rank});
    }
  }
  return merges;
}

class SentencePieceTokenizer final : public Tokenizer {
 public:
  SentencePieceTokenizer(SentencePieceModel model, const std::string& where)
      : model_(std::move(model)),
        vocabulary_(vocabulary_of(model_, where)),
        rules_(model_.character_map, where),
        user_defined_(entries_of(Type::user_defined)) {
    BpeRules rules;
    for (std::size_t i = 0; i < model_.pieces.size(); ++i) {
      const SentencePiece& piece = model_.pieces[i];
      const auto id = static_cast<std::int32_t>(i);
      if (piece.type == Type::unused && model_.kind == SentencePieceModel::Kind::bpe)
        throw UserError("{}: the piece \"{}\" is marked as unused; Weft reads no BPE models with such pieces", where,
                        piece.text);
      if (piece.type == Type::unknown) unknown_ = id;
      if (piece.type == Type::control && piece.text == model_.end_piece) end_ = id;
      if (piece.type != Type::byte || !model_.byte_fallback) continue;
      const int byte = byte_of_token(piece.text);
      if (byte < 0) throw UserError("{}: the piece \"{}\" stands for no byte", where, piece.text);
      rules.byte_tokens[static_cast<std::size_t>(byte)] = id;
    }
    if (model_.byte_fallback && std::count(rules.byte_tokens.begin(), rules.byte_tokens.end(), no_token) > 0)
      throw UserError("{}: not all bytes have a piece", where);
    byte_tokens_ = rules.byte_tokens;
    rules.unknown = unknown_;
    if (model_.kind == SentencePieceModel::Kind::bpe) {
      bpe_.emplace(vocabulary_, merges_of(model_, vocabulary_, where), rules);
    } else {
      make_unigram();
    }
  }
  SentencePieceTokenizer(const SentencePieceTokenizer&) = delete;
  SentencePieceTokenizer& operator=(const SentencePieceTokenizer&) = delete;

  std::int64_t vocabulary_size() const override { return vocabulary_.size(); }
  std::int32_t eod() const override { return end_; }
  std::unique_ptr<Encoder> encoder() const override;
  std::string decode(std::span<const std::int32_t> ids, SpecialTokens special) const override;

 private:
  friend class SentencePieceEncoder;

  std::vector<ByteTrie::Entry> entries_of(Type type) const {
    std::vector<ByteTrie::Entry> entries;
    for (std::size_t i = 0; i < model_.pieces.size(); ++i)
      if (model_.pieces[i].type == type) entries.push_back({model_.pieces[i].text, static_cast<std::int32_t>(i)});
    return entries;
  }
  void make_unigram() {
    std::vector<Unigram::Piece> pieces;
    float lowest = std::numeric_limits<float>::max(), highest = std::numeric_limits<float>::min();
    for (std::size_t i = 0; i < model_.pieces.size(); ++i) {
      const SentencePiece& piece = model_.pieces[i];
      if (piece.type == Type::normal) {
        lowest = std::min(lowest, piece.score);
        highest = std::max(highest, piece.score);
      }
      if (in_text(piece.type))
        pieces.push_back({piece.text, static_cast<std::int32_t>(i), piece.score, piece.type == Type::user_defined});
    }
    unigram_.emplace(pieces, vocabulary_.size(), unknown_, lowest, highest);
  }
  std::string normalised(std::string_view text) const;
  // The text at the beginning as a rule has it, and how many bytes of it that stands for.
  std::pair<std::string_view, std::size_t> next_normal(std::string_view text) const {
    if (const ByteTrie::Found kept = user_defined_.longest(text, 0); kept.size > 0)
      return {text.substr(0, kept.size), kept.size};
    if (const PrecompiledRules::Found rule = rules_.longest(text); rule.size > 0) return {rule.by, rule.size};
    const std::size_t size = character_size(text[0]);
    return {text.substr(0, size), size};
  }

  SentencePieceModel model_;
  Vocabulary vocabulary_;
  PrecompiledRules rules_;
  ByteTrie user_defined_;
  std::optional<Bpe> bpe_;  // this, or the next
  std::optional<Unigram> unigram_;
  std::array<std::int32_t, 256> byte_tokens_ = {};
  std::int32_t unknown_ = no_token, end_ = no_token;
};

std::string SentencePieceTokenizer::normalised(std::string_view text) const {
  std::string result;
  const std::string_view space = model_.escape_whitespaces ? space_symbol : std::string_view(" ");
  const bool trims = model_.remove_extra_whitespaces;
  while (trims && !text.empty()) {
    const auto [normal, size] = next_normal(text);
    if (normal != " ") break;
    text.remove_prefix(size);
  }
  if (text.empty()) return result;
  result.reserve(text.size() + text.size() / 2);
  const bool prefix = model_.add_dummy_prefix && !model_.whitespace_as_suffix;
  if (prefix) result += space;
  bool after_space = trims;
  while (!text.empty()) {
    auto [normal, size] = next_normal(text);
    text.remove_prefix(size);
    while (after_space && normal.starts_with(' ')) normal.remove_prefix(1);
    for (char c : normal) {
      if (c == ' ') {
        result += space;
      } else {
        result += c;
      }
    }
    if (!normal.empty()) after_space = trims && normal.ends_with(' ');
  }
  while (trims && result.ends_with(space)) result.resize(result.size() - space.size());
  if (model_.add_dummy_prefix && model_.whitespace_as_suffix) result += space;
  return result;
}

class SentencePieceEncoder final : public Encoder {
 public:
  explicit SentencePieceEncoder(const SentencePieceTokenizer& tokenizer) : tokenizer_(tokenizer) {
    if (tokenizer.bpe_) bpe_.emplace();
  }

  void encode(std::string_view text, std::vector<std::int32_t>& ids) override {
    if (const std::size_t at = first_invalid_utf8(text); at != std::string_view::npos)
      throw UserError("the text is not UTF-8: byte {} (0x{:02x}) belongs to no character", at,
                      static_cast<unsigned char>(text[at]));
    const std::string normal = tokenizer_.normalised(text);
    if (normal.size() >= std::numeric_limits<std::int32_t>::max() / 2)
      throw UserError("the text has {} bytes, more than one document can have", text.size());
    last_unknown_ = false;
    if (tokenizer_.bpe_) {
      encode_bpe(normal, ids);
    } else {
      tokenizer_.unigram_->encode(normal, unigram_, [&](std::int32_t id, std::size_t begin, std::size_t end) {
        if (id != tokenizer_.unknown_ || !tokenizer_.model_.byte_fallback) return add(id, ids);
        for (char c : std::string_view(normal).substr(begin, end - begin))
          add(tokenizer_.byte_tokens_[static_cast<unsigned char>(c)], ids);
      });
    }
  }

 private:
  // Neighbours that are unknown are one unknown piece.
  void add(std::int32_t id, std::vector<std::int32_t>& ids) {
    const bool unknown = id == tokenizer_.unknown_;
    if (!unknown || !last_unknown_) ids.push_back(id);
    last_unknown_ = unknown;
  }
  // What users define is joined with nothing.
  void encode_bpe(std::string_view text, std::vector<std::int32_t>& ids) {
    std::size_t begin = 0;
    const auto encode_until = [&](std::size_t end) {
      found_.clear();
      tokenizer_.bpe_->encode(text.substr(begin, end - begin), *bpe_, found_);
      for (std::int32_t id : found_) add(id, ids);
    };
    const ByteTrie& user_defined = tokenizer_.user_defined_;
    for (std::size_t at = 0; !user_defined.empty() && at < text.size();) {
      const ByteTrie::Found found = user_defined.longest(text, at);
      if (found.size == 0) {
        at += character_size(text[at]);
        continue;
      }
      encode_until(at);
      add(found.value, ids);
      begin = at += found.size;
    }
    encode_until(text.size());
  }

  const SentencePieceTokenizer& tokenizer_;
  std::optional<Bpe::Scratch> bpe_;
  Unigram::Scratch unigram_;
  std::vector<std::int32_t> found_;
  bool last_unknown_ = false;
};

std::unique_ptr<Encoder> SentencePieceTokenizer::encoder() const {
  return std::make_unique<SentencePieceEncoder>(*this);
}

// Control pieces have no text, whether they are to be kept or not.
std::string SentencePieceTokenizer::decode(std::span<const std::int32_t> ids, SpecialTokens /*special*/) const {
  std::string text, bytes;
  const auto end_bytes = [&] {  // each byte that belongs to no character becomes U+FFFD
    for (std::string_view left = bytes; !left.empty();) {
      const std::size_t bad = std::min(first_invalid_utf8(left), left.size());
      text += left.substr(0, bad);
      if (bad < left.size()) text += replacement_character;
      left.remove_prefix(std::min(bad + 1, left.size()));
    }
    bytes.clear();
  };
  const bool drops = model_.add_dummy_prefix || model_.remove_extra_whitespaces;
  bool at_beginning = true, dropped = false;
  for (std::int32_t id : ids) {
    const bool known = id >= 0 && id < vocabulary_size();
    const Type type = known ? model_.pieces[static_cast<std::size_t>(id)].type : Type::unknown;
    if (type == Type::byte) {
      bytes += static_cast<char>(byte_of_token(vocabulary_.text(id)));
      continue;
    }
    end_bytes();
    if (dropped || !text.empty()) at_beginning = false;
    dropped = false;
    if (type == Type::control) continue;
    if (!known) {
      text += replacement_character;
    } else if (type == Type::unknown) {
      text += model_.unknown_surface;
    } else {
      std::string_view piece = vocabulary_.text(id);
      if (at_beginning && drops && piece.starts_with(space_symbol)) {
        piece.remove_prefix(space_symbol.size());
        dropped = !model_.remove_extra_whitespaces;  // if they are removed, so are those of the next piece
      }
      while (!piece.empty()) {
        const std::size_t at = std::min(piece.find(space_symbol), piece.size());
        text += piece.substr(0, at);
        if (at < piece.size()) text += ' ';
        piece.remove_prefix(std::min(at + space_symbol.size(), piece.size()));
      }
    }
  }
  end_bytes();
  return text;
}

}  // namespace

std::unique_ptr<Tokenizer> parse_sentencepiece(std::string_view bytes, const std::string& where) {
  return std::make_unique<SentencePieceTokenizer>(parse_sentencepiece_model(bytes, where), where);
}

std::unique_ptr<Tokenizer> read_sentencepiece(const std::filesystem::path& file) {
  return parse_sentencepiece(read_regular_file(file), file.string());
}

}  // namespace weft
