#include "weft/checkpoint/torch_dist/zip_writer.h"

#include <limits>
#include <utility>

#include "weft/base/error.h"
#include "weft/checkpoint/torch_dist/crc32.h"

namespace weft {
namespace {

constexpr std::uint32_t local_header = 0x04034b50, descriptor = 0x08074b50, directory_entry = 0x02014b50,
                        end_record = 0x06054b50, zip64_end_record = 0x06064b50, zip64_locator = 0x07064b50;
// In place of a number that does not fit, which is then in a zip64 field.
constexpr std::uint64_t in_zip64 = std::numeric_limits<std::uint32_t>::max();
constexpr std::uint64_t most_entries = std::numeric_limits<std::uint16_t>::max();
constexpr std::uint64_t alignment = 64;
constexpr std::uint16_t utf8_name = 0x0800, with_descriptor = 0x0008;
constexpr std::uint16_t zip64_field = 1, padding_field = 'F' | 'B' << 8;

// Little-endian numbers one after another.
class Record {
 public:
  Record& two(std::uint64_t value) { return add(value, 2); }
  Record& four(std::uint64_t value) { return add(value, 4); }
  Record& eight(std::uint64_t value) { return add(value, 8); }
  Record& text(std::string_view value) {
    bytes_ += value;
    return *this;
  }
  Record& four_or_zip64(std::uint64_t value) { return four(value < in_zip64 ? value : in_zip64); }
  const std::string& bytes() const { return bytes_; }

 private:
  Record& add(std::uint64_t value, int bytes) {
    for (int i = 0; i < bytes; ++i) bytes_ += static_cast<char>(value >> (8 * i));
    return *this;
  }

  std::string bytes_;
};

// The extra field with those of the numbers that do not fit elsewhere.
std::string zip64_numbers(std::uint64_t size, std::uint64_t header) {
  Record numbers;
  if (size >= in_zip64) numbers.eight(size).eight(size);
  if (header >= in_zip64) numbers.eight(header);
  if (numbers.bytes().empty()) return {};
  return Record().two(zip64_field).two(numbers.bytes().size()).text(numbers.bytes()).bytes();
}

// Checksum and sizes follow the bytes, unless there are none.
std::uint16_t flags_of(std::uint64_t size) { return size > 0 ? utf8_name | with_descriptor : utf8_name; }

}  // namespace

ZipWriter::ZipWriter(PutBytes put) : put_(std::move(put)) {}

void ZipWriter::put(std::span<const std::byte> bytes) {
  put_(bytes);
  position_ += bytes.size();
}

void ZipWriter::put(const std::string& bytes) { put(std::as_bytes(std::span(bytes))); }

void ZipWriter::add(std::string_view name, std::string_view bytes) {
  begin(name, bytes.size());
  write(std::as_bytes(std::span(bytes)));
  end();
}

void ZipWriter::begin(std::string_view name, std::uint64_t size) {
  WEFT_CHECK(left_ == 0, "an entry begins before the last has ended");
  entries_.push_back({std::string(name), size, position_, 0});
  left_ = size;
  const std::string zip64 = zip64_numbers(size, position_);
  const std::uint64_t unpadded = position_ + 30 + name.size() + zip64.size() + 4;
  const std::uint64_t padding = (alignment - unpadded % alignment) % alignment;
  Record header;
  header.four(local_header).two(0).two(flags_of(size)).two(0).four(0);  // version, flags, stored, time and date
  header.four(0).four(0).four(0);                                       // checksum and sizes: in the descriptor
  header.two(name.size()).two(zip64.size() + 4 + padding).text(name).text(zip64);
  header.two(padding_field).two(padding).text(std::string(padding, 'Z'));
  put(header.bytes());
}

void ZipWriter::write(std::span<const std::byte> bytes) {
  WEFT_CHECK(bytes.size() <= left_, "{} bytes for an entry that lacks {}", bytes.size(), left_);
  left_ -= bytes.size();
  entries_.back().checksum = crc32(bytes, entries_.back().checksum);
  if (!bytes.empty()) put(bytes);
}

void ZipWriter::end() {
  const Entry& entry = entries_.back();
  WEFT_CHECK(left_ == 0, "entry {} lacks {} bytes", entry.name, left_);
  if (entry.size == 0) return;
  const bool large = !zip64_numbers(entry.size, entry.header).empty();
  Record record;
  record.four(descriptor).four(entry.checksum);
  large ? record.eight(entry.size).eight(entry.size) : record.four(entry.size).four(entry.size);
  put(record.bytes());
}

void ZipWriter::finish() {
  WEFT_CHECK(left_ == 0, "the archive ends within an entry");
  const std::uint64_t begin = position_;
  for (const Entry& entry : entries_) {
    const std::string zip64 = zip64_numbers(entry.size, entry.header);
    Record record;
    record.four(directory_entry).two(0).two(0).two(flags_of(entry.size)).two(0).four(0).four(entry.checksum);
    record.four_or_zip64(entry.size).four_or_zip64(entry.size).two(entry.name.size()).two(zip64.size()).two(0);
    record.two(0).two(0).four(0).four_or_zip64(entry.header).text(entry.name).text(zip64);
    put(record.bytes());
  }
  const std::uint64_t end = position_, size = end - begin, count = entries_.size();
  // torch.save writes the zip64 records always.
  Record last;
  last.four(zip64_end_record).eight(44).two(0x031e).two(45).four(0).four(0);
  last.eight(count).eight(count).eight(size).eight(begin);
  last.four(zip64_locator).four(0).eight(end).four(1);
  const std::uint64_t short_count = count < most_entries ? count : most_entries;
  last.four(end_record).two(0).two(0).two(short_count).two(short_count);
  last.four_or_zip64(size).four_or_zip64(begin).two(0);
  put(last.bytes());
}

}  // namespace weft
