// Files of the disk.
#pragma once

#include <cstddef>
#include <filesystem>
#include <span>

namespace weft {

// A file mapped read-only into memory. Reading it from several threads is safe; the file must not shrink meanwhile.
class MappedFile {
 public:
  // UserError when the file cannot be opened; an empty file gives an empty span.
  explicit MappedFile(const std::filesystem::path& file);
  ~MappedFile();
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  std::span<const std::byte> bytes() const { return {data_, size_}; }

 private:
  const std::byte* data_ = nullptr;
  std::size_t size_ = 0;
};
// Lets the system take back the memory behind these bytes of a mapped file; they are read again when looked at again.
void forget_pages(std::span<const std::byte> bytes);

}  // namespace weft
