#include "weft/data/indexed_dataset.h"

#include <algorithm>
#include <cstring>

#include "weft/base/checksum.h"
#include "weft/base/error.h"

namespace weft {

namespace {

constexpr std::size_t header_bytes = 34;
constexpr std::string_view magic{"MMIDIDX\0\0", 9};

// The arrays start at byte 34, so nothing in the file is aligned: read with memcpy.
template <class T>
T load(std::span<const std::byte> bytes, std::size_t at) {
  T value;
  std::memcpy(&value, bytes.data() + at, sizeof(T));
  return value;
}

}  // namespace

std::size_t size_of(TokenType type) {
  switch (type) {
    case TokenType::u8:
    case TokenType::i8:
      return 1;
    case TokenType::i16:
    case TokenType::u16:
      return 2;
    case TokenType::i32:
      return 4;
    case TokenType::i64:
      return 8;
  }
  WEFT_CHECK(false, "token type {}", static_cast<int>(type));
}

std::string_view name_of(TokenType type) {
  switch (type) {
    case TokenType::u8:
      return "uint8";
    case TokenType::i8:
      return "int8";
    case TokenType::i16:
      return "int16";
    case TokenType::u16:
      return "uint16";
    case TokenType::i32:
      return "int32";
    case TokenType::i64:
      return "int64";
  }
  WEFT_CHECK(false, "token type {}", static_cast<int>(type));
}

TokenType token_type_for(std::int64_t vocabulary_size) {
  return vocabulary_size < 65500 ? TokenType::u16 : TokenType::i32;
}

std::filesystem::path indexed_dataset_file(const std::string& prefix, std::string_view extension) {
  for (std::string_view ending : {".bin", ".idx"}) {
    if (prefix.ends_with(ending)) {
      throw UserError("{} is a file of a data set; give the prefix that its two files share: {}", prefix,
                      prefix.substr(0, prefix.size() - ending.size()));
    }
  }
  return prefix + std::string(extension);
}

IndexedDataset::IndexedDataset(const std::string& prefix, std::int64_t vocabulary_size)
    : index_path_(indexed_dataset_file(prefix, ".idx")),
      token_path_(indexed_dataset_file(prefix, ".bin")),
      index_(index_path_),
      token_file_(token_path_),
      vocabulary_size_(vocabulary_size) {
  check_header();
  check_sequences();
  checksum_ = checksum_of_files();
}

void IndexedDataset::check_header() {
  const auto bytes = index_.bytes();
  const std::string file = index_path_.string();
  if (bytes.size() >= magic.size() && std::memcmp(bytes.data(), magic.data(), magic.size()) != 0) {
    throw UserError("{} does not begin with \"MMIDIDX\": it is not the index of a Megatron data set", file);
  }
  if (bytes.size() < header_bytes) {
    throw UserError("{} is truncated: it has {} bytes, and the header alone takes {}", file, bytes.size(),
                    header_bytes);
  }
  const auto version = load<std::uint64_t>(bytes, 9);
  if (version != 1) throw UserError("{} has version {}; Weft reads version 1", file, version);

  const auto code = load<std::uint8_t>(bytes, 17);
  if (code == 6 || code == 7) {
    throw UserError("{} holds {} (type code {}), not tokens", file, code == 6 ? "float64" : "float32", code);
  }
  if (code == 0 || code > 8) throw UserError("{} has the unknown type code {}; codes are 1 to 8", file, code);
  type_ = static_cast<TokenType>(code);

  // Divide, do not multiply: a damaged count could overflow and pass the check.
  const auto sequences = load<std::uint64_t>(bytes, 18), boundaries = load<std::uint64_t>(bytes, 26);
  const std::uint64_t room = bytes.size() - header_bytes;
  if (sequences > room / 12 || boundaries > (room - 12 * sequences) / 8) {
    throw UserError(
        "{} is truncated: {} bytes are too few for the {} sequences and {} document boundaries it announces", file,
        bytes.size(), sequences, boundaries);
  }
  const std::uint64_t used = 12 * sequences + 8 * boundaries;
  if (sequences > 0 && room - used == sequences) {
    throw UserError(
        "{} is the index of a multimodal data set (it holds a mode for each sequence), which is not supported", file);
  }
  if (room != used) {
    throw UserError("{} has {} bytes after its arrays of {} sequences and {} document boundaries", file, room - used,
                    sequences, boundaries);
  }
  sequences_ = static_cast<std::int64_t>(sequences);
  boundaries_ = static_cast<std::int64_t>(boundaries);
}

void IndexedDataset::check_sequences() {
  const std::string file = index_path_.string();
  const auto width = static_cast<std::int64_t>(size_of(type_));
  std::int64_t expected = 0;
  for (std::int64_t i = 0; i < sequences_; ++i) {
    const auto tokens = load<std::int32_t>(index_.bytes(), header_bytes + 4 * static_cast<std::size_t>(i));
    if (tokens < 0) throw UserError("{}: sequence {} has length {}", file, i, tokens);
    if (pointer(i) != expected) {
      throw UserError("{}: sequence {} starts at byte {}, but the one before it ends at byte {}", file, i, pointer(i),
                      expected);
    }
    expected += tokens * width;
  }
  const auto boundaries = document_boundaries();
  if (boundaries.empty() || boundaries.front() != 0)
    throw UserError("{}: document 0 does not start at sequence 0", file);
  const auto fall = std::is_sorted_until(boundaries.begin(), boundaries.end());
  if (fall != boundaries.end()) {
    throw UserError("{}: document {} starts at sequence {}, before the previous document", file,
                    fall - boundaries.begin(), *fall);
  }
  if (boundaries.back() != sequences_) {
    throw UserError("{}: its documents end at sequence {}, but it has {} sequences", file, boundaries.back(),
                    sequences_);
  }
  const auto size = static_cast<std::int64_t>(token_file_.bytes().size());
  if (size != expected) {
    throw UserError(
        "{} has {} bytes, but {} describes {} ({} tokens of {}); one of the two files is damaged or belongs "
        "to another data set",
        token_path_.string(), size, index_path_.filename().string(), expected, expected / width, name_of(type_));
  }
  tokens_ = expected / width;
}

std::int64_t IndexedDataset::length(std::int64_t sequence) const {
  return load<std::int32_t>(index_.bytes(), header_bytes + 4 * static_cast<std::size_t>(sequence));
}

std::int64_t IndexedDataset::pointer(std::int64_t sequence) const {
  return load<std::int64_t>(
      index_.bytes(), header_bytes + 4 * static_cast<std::size_t>(sequences_) + 8 * static_cast<std::size_t>(sequence));
}

std::vector<std::int64_t> IndexedDataset::document_boundaries() const {
  std::vector<std::int64_t> boundaries(static_cast<std::size_t>(boundaries_));
  const auto from = index_.bytes().subspan(header_bytes + 12 * static_cast<std::size_t>(sequences_));
  if (!boundaries.empty()) std::memcpy(boundaries.data(), from.data(), boundaries.size() * sizeof(std::int64_t));
  return boundaries;
}

template <class Token>
void IndexedDataset::read_as(std::int64_t sequence, std::int64_t offset, std::span<std::int32_t> out) const {
  const auto start = static_cast<std::size_t>(pointer(sequence)) + static_cast<std::size_t>(offset) * sizeof(Token);
  if (const std::size_t size = token_file_.bytes().size(); start > size || out.size() > (size - start) / sizeof(Token))
    throw changed();
  for (std::size_t i = 0; i < out.size(); ++i) {
    const auto token = static_cast<std::int64_t>(load<Token>(token_file_.bytes(), start + i * sizeof(Token)));
    if (token < 0 || token >= vocabulary_size_) {
      throw UserError(
          "{}: token {} at position {} of sequence {} (byte {}) is outside the vocabulary of {} ids; use the tokenizer "
          "or the --vocab-size that the file was written with",
          token_path_.string(), token, offset + static_cast<std::int64_t>(i), sequence, start + i * sizeof(Token),
          vocabulary_size_);
    }
    out[i] = static_cast<std::int32_t>(token);
  }
}

RunError IndexedDataset::changed() const {
  return RunError("{} has changed since the run began; put it back as it was", index_path_.string());
}

void IndexedDataset::read(std::int64_t sequence, std::int64_t offset, std::span<std::int32_t> out) const {
  WEFT_CHECK(sequence >= 0 && sequence < sequences_, "sequence {} of {}", sequence, sequences_);
  // Samples are made from the lengths that the file had when it was opened.
  if (offset < 0 || offset + static_cast<std::int64_t>(out.size()) > length(sequence)) throw changed();
  switch (type_) {
    case TokenType::u8:
      return read_as<std::uint8_t>(sequence, offset, out);
    case TokenType::i8:
      return read_as<std::int8_t>(sequence, offset, out);
    case TokenType::i16:
      return read_as<std::int16_t>(sequence, offset, out);
    case TokenType::u16:
      return read_as<std::uint16_t>(sequence, offset, out);
    case TokenType::i32:
      return read_as<std::int32_t>(sequence, offset, out);
    case TokenType::i64:
      return read_as<std::int64_t>(sequence, offset, out);
  }
}

std::string IndexedDataset::identity() const {
  return fmt::format("{} ({} sequences, {} {} tokens, checksum {})", token_path_.stem().string(), sequences_, tokens_,
                     name_of(type_), checksum_);
}

// Of the whole index, and of the tokens in blocks at equal distances: reading all of them could take hours.
std::string IndexedDataset::checksum_of_files() const {
  constexpr std::size_t blocks = 8, block_bytes = std::size_t{128} << 10;
  const auto tokens = token_file_.bytes();
  std::string sums = checksum_text(checksum_of(index_.bytes()));
  if (tokens.size() <= blocks * block_bytes)
    return checksum_text(checksum_of(sums + checksum_text(checksum_of(tokens))));
  for (std::size_t i = 0; i < blocks; ++i)
    sums += checksum_text(checksum_of(tokens.subspan(i * ((tokens.size() - block_bytes) / (blocks - 1)), block_bytes)));
  return checksum_text(checksum_of(sums));
}

}  // namespace weft
