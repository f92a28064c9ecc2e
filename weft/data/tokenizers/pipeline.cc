#include "weft/data/tokenizers/pipeline.h"

#include <algorithm>
#include <limits>
#include <unordered_map>

#include "weft/base/error.h"
#include "weft/data/tokenizers/utf8.h"

namespace weft {

namespace {

class Pipeline final : public Tokenizer {
 public:
  explicit Pipeline(PipelineParts parts)
      : parts_(std::move(parts)),
        bpe_(parts_.vocabulary, parts_.merges, parts_.rules),
        added_(std::move(parts_.added)),
        added_later_(std::move(parts_.added_after_normalizer)),
        size_(parts_.vocabulary.size()),
        special_(static_cast<std::size_t>(size_)) {
    parts_.merges.clear();
    parts_.merges.shrink_to_fit();
    for (auto& [id, text] : parts_.added_texts) {
      size_ = std::max(size_, std::int64_t{id} + 1);
      added_texts_.insert_or_assign(id, std::move(text));
    }
    special_.resize(static_cast<std::size_t>(size_));
    for (std::int32_t id : parts_.special) special_[static_cast<std::size_t>(id)] = true;
  }
  Pipeline(const Pipeline&) = delete;
  Pipeline& operator=(const Pipeline&) = delete;

  std::int64_t vocabulary_size() const override { return size_; }
  std::int32_t eod() const override { return parts_.eod; }
  std::vector<std::int32_t> special_before() const override { return parts_.before; }
  std::vector<std::int32_t> special_after() const override { return parts_.after; }
  std::unique_ptr<Encoder> encoder() const override;
  std::string decode(std::span<const std::int32_t> ids, SpecialTokens special) const override;

 private:
  friend class PipelineEncoder;
  // Null: the id has no text.
  const std::string* added_text(std::int32_t id) const {
    const auto found = added_texts_.find(id);
    return found == added_texts_.end() ? nullptr : &found->second;
  }

  PipelineParts parts_;
  Bpe bpe_;
  AddedTokens added_, added_later_;
  std::int64_t size_;
  std::vector<bool> special_;
  std::unordered_map<std::int32_t, std::string> added_texts_;
  ByteLetters letters_;
};

class PipelineEncoder final : public Encoder, private PieceSink {
 public:
  explicit PipelineEncoder(const Pipeline& pipeline) : pipeline_(pipeline) {}

  void encode(std::string_view text, std::vector<std::int32_t>& ids) override {
    if (const std::size_t at = first_invalid_utf8(text); at != std::string_view::npos)
      throw UserError("the text is not UTF-8: byte {} (0x{:02x}) belongs to no character", at,
                      static_cast<unsigned char>(text[at]));
    if (text.size() >= std::numeric_limits<std::uint32_t>::max() / 4)
      throw UserError("the text has {} bytes, more than {} of one document can be encoded", text.size(),
                      std::numeric_limits<std::uint32_t>::max() / 4);
    ids_ = &ids;
    if (pipeline_.added_.empty()) return part(text, true);
    pipeline_.added_.split(
        text, regex_, [&](std::string_view between) { part(between, between.data() == text.data()); },
        [&](std::int32_t id) { ids_->push_back(id); });
  }

 private:
  void part(std::string_view text, bool at_beginning) {
    if (pipeline_.parts_.normalizer.empty()) return normal_part(text, at_beginning);
    const std::string normal = pipeline_.parts_.normalizer.apply(std::string(text), regex_, at_beginning);
    normal_part(normal, at_beginning);
  }
  void normal_part(std::string_view text, bool at_beginning) {
    const PreTokenizer& pre_tokenizer = pipeline_.parts_.pre_tokenizer;
    if (pipeline_.added_later_.empty()) return pre_tokenizer.split(text, at_beginning, regex_, *this);
    pipeline_.added_later_.split(
        text, regex_,
        [&](std::string_view between) {
          pre_tokenizer.split(between, at_beginning && between.data() == text.data(), regex_, *this);
        },
        [&](std::int32_t id) { ids_->push_back(id); });
  }
  void piece(std::string_view text) override { pipeline_.bpe_.encode(text, bpe_, *ids_); }

  const Pipeline& pipeline_;
  RegexScratch regex_;
  Bpe::Scratch bpe_;
  std::vector<std::int32_t>* ids_ = nullptr;
};

std::unique_ptr<Encoder> Pipeline::encoder() const { return std::make_unique<PipelineEncoder>(*this); }

std::string Pipeline::decode(std::span<const std::int32_t> ids, SpecialTokens special) const {
  const bool bytes = parts_.rules.of_bytes;
  const bool joins_bytes = bytes && parts_.decoder.only_joins_bytes();
  std::vector<std::string> tokens;
  std::string all, mapped;
  for (std::int32_t id : ids) {
    const bool known = id >= 0 && id < size_;
    if (known && special == SpecialTokens::skip && special_[static_cast<std::size_t>(id)]) continue;
    std::string text(replacement_character);
    bool as_bytes = false;
    if (const std::string* added = known ? added_text(id) : nullptr) {
      text = *added;
      if (joins_bytes && letters_.to_bytes(text, mapped)) text = mapped;
    } else if (known && parts_.vocabulary.has(id)) {
      text = parts_.vocabulary.text(id);
      as_bytes = bytes && parts_.vocabulary.findable(id);
    }
    if (joins_bytes) {
      all += text;
    } else {
      tokens.push_back(as_bytes ? letters_.to_letters(text) : std::move(text));
    }
  }
  return joins_bytes ? with_replacements(all) : parts_.decoder.decode(std::move(tokens));
}

}  // namespace

std::unique_ptr<Tokenizer> make_pipeline(PipelineParts parts) { return std::make_unique<Pipeline>(std::move(parts)); }

}  // namespace weft
