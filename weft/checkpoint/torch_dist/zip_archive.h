// A zip archive in memory, of the kind that torch.save writes: entries are stored, never compressed, so that reading one
// is a look at its bytes.
//
//   local header, name, padding, data | ... | central directory | zip64 end record, its locator | end record
//
// Only the central directory counts, found from the end: local headers have neither sizes nor checksums. Whatever is
// wrong with an archive is a UserError that begins with `where`.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace weft {

struct ZipEntry {
  std::string_view name;
  std::span<const std::byte> bytes;
  std::uint32_t checksum = 0;  // CRC-32 of the bytes; 0: the writer computed none
};

class ZipArchive {
 public:
  // The bytes must outlive the archive and are not copied.
  ZipArchive(std::span<const std::byte> bytes, std::string where);

  const std::string& where() const { return where_; }
  const std::vector<ZipEntry>& entries() const { return entries_; }  // in the order of the central directory
  const ZipEntry* find(std::string_view name) const;                 // null: no such entry
  const ZipEntry& at(std::string_view name) const;                   // UserError: no such entry

 private:
  struct Directory {
    std::uint64_t begin = 0, size = 0, entries = 0;
  };
  Directory find_directory() const;
  Directory find_zip64_directory(std::uint64_t locator) const;
  void read_directory(const Directory& directory);
  std::span<const std::byte> data_of(std::string_view name, std::uint64_t header, std::uint64_t size,
                                     std::uint64_t end) const;
  void check_disjoint() const;

  std::span<const std::byte> bytes_;
  std::string where_;
  std::vector<ZipEntry> entries_;
};

// Of bytes in memory that belong to a mapped file alone the pages may be given back once they are read.
enum class Pages { keep, give_back };
// UserError unless the entry's bytes have its checksum, or it has none.
void check_checksum(const ZipEntry& entry, const std::string& where, Pages pages);

}  // namespace weft
