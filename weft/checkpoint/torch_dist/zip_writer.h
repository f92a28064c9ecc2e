// Writes a zip archive as torch.save does (zip_archive.h): entries stored, the bytes of each at a multiple of 64 from the
// beginning of the archive, zip64 where a number needs it. Nothing but the central directory is kept in memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace weft {

using PutBytes = std::function<void(std::span<const std::byte> bytes)>;

class ZipWriter {
 public:
  explicit ZipWriter(PutBytes put);  // is given the archive, piece by piece

  void add(std::string_view name, std::string_view bytes);
  // Or in pieces: `size` bytes in all.
  void begin(std::string_view name, std::uint64_t size);
  void write(std::span<const std::byte> bytes);
  void end();

  void finish();
  std::uint64_t size() const { return position_; }  // bytes put so far

 private:
  struct Entry {
    std::string name;
    std::uint64_t size = 0, header = 0;
    std::uint32_t checksum = 0;
  };
  void put(std::span<const std::byte> bytes);
  void put(const std::string& bytes);

  PutBytes put_;
  std::vector<Entry> entries_;
  std::uint64_t position_ = 0, left_ = 0;  // left_: of the entry that is being written
};

}  // namespace weft
