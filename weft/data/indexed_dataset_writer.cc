#include "weft/data/indexed_dataset_writer.h"

#include <cstring>
#include <limits>

#include "weft/base/error.h"

namespace weft {

namespace {

template <class T>
void append(std::string& bytes, T value) {
  char raw[sizeof(T)];
  std::memcpy(raw, &value, sizeof(T));
  bytes.append(raw, sizeof(T));
}

}  // namespace

IndexedDatasetWriter::IndexedDatasetWriter(const std::string& prefix, std::int64_t vocabulary_size)
    : token_path_(indexed_dataset_file(prefix, ".bin")),
      index_path_(indexed_dataset_file(prefix, ".idx")),
      vocabulary_size_(vocabulary_size),
      type_(token_type_for(vocabulary_size)) {
  try {
    file_ = std::make_unique<NewFile>(token_path_);
  } catch (const RunError& error) {
    throw UserError("{} (does the folder exist?)", error.what());
  }
}

void IndexedDatasetWriter::add_document(std::span<const std::int32_t> tokens) {
  WEFT_CHECK(file_ != nullptr, "{} is finished", token_path_.string());
  if (tokens.size() > static_cast<std::size_t>(std::numeric_limits<std::int32_t>::max())) {
    throw UserError("document {} has {} tokens; a document can have at most {}: split it", documents(), tokens.size(),
                    std::numeric_limits<std::int32_t>::max());
  }
  const std::size_t width = size_of(type_), begin = packed_.size();
  packed_.resize(begin + tokens.size() * width);
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    WEFT_CHECK(tokens[i] >= 0 && tokens[i] < vocabulary_size_, "token {} of a vocabulary of {}", tokens[i],
               vocabulary_size_);
    std::memcpy(packed_.data() + begin + i * width, &tokens[i], width);  // little endian: the low bytes come first
  }
  if (packed_.size() >= std::size_t{1} << 20) write_packed();
  lengths_.push_back(static_cast<std::int32_t>(tokens.size()));
  tokens_ += static_cast<std::int64_t>(tokens.size());
}

void IndexedDatasetWriter::write_packed() {
  file_->write(packed_);
  packed_.clear();
}

std::string IndexedDatasetWriter::index_bytes() const {
  std::string bytes("MMIDIDX\0\0", 9);
  append(bytes, std::uint64_t{1});
  append(bytes, static_cast<std::uint8_t>(type_));
  append(bytes, static_cast<std::uint64_t>(lengths_.size()));
  append(bytes, static_cast<std::uint64_t>(lengths_.size() + 1));
  bytes.reserve(bytes.size() + 20 * lengths_.size() + 8);
  for (std::int32_t length : lengths_) append(bytes, length);
  std::int64_t pointer = 0;
  for (std::int32_t length : lengths_) {
    append(bytes, pointer);
    pointer += length * static_cast<std::int64_t>(size_of(type_));
  }
  for (std::int64_t document = 0; document <= documents(); ++document) append(bytes, document);
  return bytes;
}

void IndexedDatasetWriter::finish() {
  WEFT_CHECK(file_ != nullptr, "{} is finished", token_path_.string());
  write_packed();
  file_->sync();
  NewFile index(index_path_);
  const std::string bytes = index_bytes();
  index.write(std::as_bytes(std::span(bytes)));
  index.sync();  // only renaming is left
  // An earlier index must never describe the new tokens.
  std::error_code error;
  std::filesystem::remove(index_path_, error);
  if (error) throw RunError("cannot remove the previous index {}: {}", index_path_.string(), error.message());
  file_->commit();
  file_.reset();
  index.commit();
}

}  // namespace weft
