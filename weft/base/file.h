// Files: read, mapped, and written whole or not at all.
#pragma once

#include <cstddef>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>

namespace weft {

// Whole file as bytes; UserError when it cannot be read.
std::string read_file(const std::filesystem::path& file);
// RunError on failure: see NewFile.
void write_file_atomically(const std::filesystem::path& file, std::string_view bytes);

// A file that has its name, and replaces what had it, only once `commit` has returned. Until then it is written beside,
// under another name, and goes away with this object. A link stays one: the file that it names is replaced. What is no
// file (a pipe) or this process's output (/dev/stdout, wherever it goes) is written to as it comes. RunError when the file system fails.
class NewFile {
 public:
  explicit NewFile(const std::filesystem::path& file);
  ~NewFile();
  NewFile(const NewFile&) = delete;
  NewFile& operator=(const NewFile&) = delete;

  void write(std::span<const std::byte> bytes);
  void sync();  // what was written is on the disk
  void commit();

 private:
  [[noreturn]] void fail(const char* what) const;

  std::string file_, temporary_;  // temporary_: "" for what is no file
  int fd_ = -1;
  bool committed_ = false;
};

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
