#include "weft/checkpoint/torch_dist/zip_archive.h"

#include <algorithm>
#include <cstring>

#include "weft/base/error.h"
#include "weft/base/file.h"
#include "weft/checkpoint/torch_dist/byte_cursor.h"
#include "weft/checkpoint/torch_dist/crc32.h"
#include "weft/checkpoint/torch_dist/shown.h"

namespace weft {
namespace {

constexpr std::uint32_t local_header = 0x04034b50, directory_entry = 0x02014b50, end_record = 0x06054b50,
                        zip64_end_record = 0x06064b50, zip64_locator = 0x07064b50;
constexpr std::size_t end_bytes = 22, locator_bytes = 20, entry_bytes = 46, max_comment = 65535;
constexpr std::uint32_t in_zip64 = 0xffffffff;  // of a 32-bit field: the number is in the zip64 extra field
constexpr std::size_t checksum_step = std::size_t{16} << 20;

template <class T>
T number_at(std::span<const std::byte> bytes, std::uint64_t position) {
  T value;
  std::memcpy(&value, bytes.data() + position, sizeof(T));
  return value;
}

// An entry of the central directory, with the numbers of its zip64 extra field put in.
struct DirectoryEntry {
  std::uint16_t flags = 0, method = 0;
  std::uint32_t checksum = 0;
  std::uint64_t packed = 0, size = 0, header = 0;
  std::string_view name;
};

void read_zip64_field(ByteCursor extra, DirectoryEntry& entry, const std::string& where) {
  while (extra.left() >= 4) {
    const auto id = extra.number<std::uint16_t>("an extra field");
    const auto length = extra.number<std::uint16_t>("an extra field");
    ByteCursor field(extra.take(length, "an extra field"), where);
    if (id != 1) continue;
    for (std::uint64_t* const value : {&entry.size, &entry.packed, &entry.header})
      if (*value == in_zip64) *value = field.number<std::uint64_t>("a zip64 extra field");
    return;
  }
}

DirectoryEntry read_entry(ByteCursor& in, const std::string& where) {
  constexpr std::string_view what = "an entry of the central directory";
  if (in.number<std::uint32_t>(what) != directory_entry) {
    throw UserError("{}: damaged: the central directory has no entry at byte {}, where one should begin", where,
                    in.position() - 4);
  }
  DirectoryEntry entry;
  in.take(4, what);  // versions
  entry.flags = in.number<std::uint16_t>(what);
  entry.method = in.number<std::uint16_t>(what);
  in.take(4, what);  // time and date
  entry.checksum = in.number<std::uint32_t>(what);
  entry.packed = in.number<std::uint32_t>(what);
  entry.size = in.number<std::uint32_t>(what);
  const auto name = in.number<std::uint16_t>(what), extra = in.number<std::uint16_t>(what),
             comment = in.number<std::uint16_t>(what);
  in.take(8, what);  // disk, attributes
  entry.header = in.number<std::uint32_t>(what);
  entry.name = in.take_text(name, "a name in the central directory");
  read_zip64_field(ByteCursor(in.take(extra, what), where), entry, where);
  in.take(comment, what);
  return entry;
}

}  // namespace

ZipArchive::ZipArchive(std::span<const std::byte> bytes, std::string where) : bytes_(bytes), where_(std::move(where)) {
  read_directory(find_directory());
  check_disjoint();
}

ZipArchive::Directory ZipArchive::find_directory() const {
  if (bytes_.size() < end_bytes) {
    throw UserError("{}: is not a zip archive, or is truncated: it has {} bytes, and its end record alone takes {}",
                    where_, bytes_.size(), end_bytes);
  }
  const std::size_t last = bytes_.size() - end_bytes, first = last - std::min(last, max_comment);
  std::size_t end = last;
  // A record is the end record if its comment reaches to the end of the archive.
  while (number_at<std::uint32_t>(bytes_, end) != end_record ||
         number_at<std::uint16_t>(bytes_, end + 20) != last - end) {
    if (end == first) {
      throw UserError("{}: is not a zip archive, or is truncated: it does not end with an end record", where_);
    }
    --end;
  }
  if (end >= locator_bytes && number_at<std::uint32_t>(bytes_, end - locator_bytes) == zip64_locator) {
    return find_zip64_directory(end - locator_bytes);
  }
  const Directory directory{number_at<std::uint32_t>(bytes_, end + 16), number_at<std::uint32_t>(bytes_, end + 12),
                            number_at<std::uint16_t>(bytes_, end + 10)};
  if (number_at<std::uint32_t>(bytes_, end + 4) != 0) {
    throw UserError("{}: is one of several parts of a zip archive, or damaged", where_);
  }
  if (directory.begin > end || directory.size > end - directory.begin) {
    throw UserError("{}: damaged: a central directory of {} bytes at byte {} does not fit before the end record at {}",
                    where_, directory.size, directory.begin, end);
  }
  return directory;
}

ZipArchive::Directory ZipArchive::find_zip64_directory(std::uint64_t locator) const {
  ByteCursor in(bytes_.first(locator), where_);
  constexpr std::string_view what = "the zip64 end record";
  in.go_to(number_at<std::uint64_t>(bytes_, locator + 8), what);
  const std::uint64_t end = in.position();
  if (in.number<std::uint32_t>(what) != zip64_end_record) {
    throw UserError("{}: damaged: there is no zip64 end record at byte {}", where_, end);
  }
  in.take(20, what);  // its size, versions, disks
  in.take(8, what);   // entries on this disk
  Directory directory;
  directory.entries = in.number<std::uint64_t>(what);
  directory.size = in.number<std::uint64_t>(what);
  directory.begin = in.number<std::uint64_t>(what);
  if (directory.begin > end || directory.size > end - directory.begin) {
    throw UserError(
        "{}: damaged: a central directory of {} bytes at byte {} does not fit before the zip64 end record "
        "at {}",
        where_, directory.size, directory.begin, end);
  }
  return directory;
}

void ZipArchive::read_directory(const Directory& directory) {
  if (directory.entries > directory.size / entry_bytes) {
    throw UserError("{}: damaged: {} entries do not fit in a central directory of {} bytes", where_, directory.entries,
                    directory.size);
  }
  ByteCursor in(bytes_.first(directory.begin + directory.size), where_);
  in.go_to(directory.begin, "the central directory");
  entries_.reserve(directory.entries);
  for (std::uint64_t i = 0; i < directory.entries; ++i) {
    const DirectoryEntry entry = read_entry(in, where_);
    if ((entry.flags & 1) != 0) throw UserError("{}: entry {} is encrypted", where_, shown(entry.name));
    if (entry.method != 0 || entry.packed != entry.size) {
      throw UserError("{}: entry {} is compressed (method {}, {} bytes for {}); torch.save only stores", where_,
                      shown(entry.name), entry.method, entry.packed, entry.size);
    }
    entries_.push_back({entry.name, data_of(entry.name, entry.header, entry.size, directory.begin), entry.checksum});
  }
  if (in.left() != 0) {
    throw UserError("{}: damaged: {} bytes of the central directory follow its {} entries", where_, in.left(),
                    directory.entries);
  }
}

std::span<const std::byte> ZipArchive::data_of(std::string_view name, std::uint64_t header, std::uint64_t size,
                                               std::uint64_t end) const {
  ByteCursor in(bytes_.first(end), where_);
  constexpr std::string_view what = "a local header";
  in.go_to(header, what);
  if (in.number<std::uint32_t>(what) != local_header) {
    throw UserError("{}: damaged: entry {} has no local header at byte {}", where_, shown(name), header);
  }
  in.take(22, what);  // version, flags, method, time, checksum, sizes
  const auto name_bytes = in.number<std::uint16_t>(what), extra = in.number<std::uint16_t>(what);
  if (in.take_text(name_bytes, what) != name) {
    throw UserError("{}: damaged: the local header at byte {} is not that of entry {}", where_, header, shown(name));
  }
  in.take(extra, what);
  return in.take(size, fmt::format("entry {}", shown(name)));
}

void ZipArchive::check_disjoint() const {
  std::vector<const ZipEntry*> sorted;
  sorted.reserve(entries_.size());
  for (const ZipEntry& entry : entries_) sorted.push_back(&entry);
  std::sort(sorted.begin(), sorted.end(),
            [](const ZipEntry* a, const ZipEntry* b) { return a->bytes.data() < b->bytes.data(); });
  for (std::size_t i = 1; i < sorted.size(); ++i) {
    const ZipEntry &before = *sorted[i - 1], &entry = *sorted[i];
    // The local header, which has the name, lies between two entries.
    if (before.bytes.data() + before.bytes.size() + 30 + entry.name.size() > entry.bytes.data()) {
      throw UserError("{}: damaged: the entries {} and {} overlap", where_, shown(before.name), shown(entry.name));
    }
  }
  std::sort(sorted.begin(), sorted.end(), [](const ZipEntry* a, const ZipEntry* b) { return a->name < b->name; });
  const auto twice = std::adjacent_find(sorted.begin(), sorted.end(),
                                        [](const ZipEntry* a, const ZipEntry* b) { return a->name == b->name; });
  if (twice != sorted.end()) throw UserError("{}: damaged: has entry {} twice", where_, shown((*twice)->name));
}

const ZipEntry* ZipArchive::find(std::string_view name) const {
  const auto at = std::find_if(entries_.begin(), entries_.end(), [&](const ZipEntry& e) { return e.name == name; });
  return at == entries_.end() ? nullptr : &*at;
}

const ZipEntry& ZipArchive::at(std::string_view name) const {
  if (const ZipEntry* entry = find(name)) return *entry;
  throw UserError("{}: the archive has no entry {}", where_, shown(name));
}

void check_checksum(const ZipEntry& entry, const std::string& where, Pages pages) {
  if (entry.checksum == 0) return;
  std::uint32_t sum = 0;
  for (std::size_t at = 0; at < entry.bytes.size(); at += checksum_step) {
    const auto step = entry.bytes.subspan(at, std::min(checksum_step, entry.bytes.size() - at));
    sum = crc32(step, sum);
    if (pages == Pages::give_back) forget_pages(step);
  }
  if (sum != entry.checksum) {
    throw UserError("{}: damaged: entry {} has checksum {:08x}, and the archive says {:08x}", where, shown(entry.name),
                    sum, entry.checksum);
  }
}

}  // namespace weft
