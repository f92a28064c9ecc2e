// Reading, mapping and writing files. A file is written whole or not at all.
#pragma once

#include <cstddef>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "weft/base/file_system.h"
#include "weft/base/temporary_path.h"

namespace weft {

// The whole file as bytes. UserError when it cannot be read.
std::string read_file(const std::filesystem::path& file);
// The same of a file on disk alone: a pipe or a device in its place could keep the reader forever.
std::string read_regular_file(const std::filesystem::path& file);
// Whether the name leads to anything. UserError when that cannot be found out: links in a loop, a folder not to be entered.
bool is_there(const std::filesystem::path& path);
// RunError on failure: see NewFile.
void write_file_atomically(const std::filesystem::path& file, std::string_view bytes,
                           const FileSystem& files = machine_files());

// A file that takes its name, replacing any file of that name, only when `commit` returns. Until then it has a
// temporary name in the same folder and is removed with this object. A symbolic link is kept: its target is replaced. A
// path that is not a regular file (a pipe), or that is this process's output (/dev/stdout, wherever it goes), is
// written to directly. RunError when the file system fails.
class NewFile {
 public:
  explicit NewFile(const std::filesystem::path& file, const FileSystem& files = machine_files());
  ~NewFile();
  NewFile(const NewFile&) = delete;
  NewFile& operator=(const NewFile&) = delete;

  void write(std::span<const std::byte> bytes);
  void sync();  // returns when everything written is on disk
  void commit();

 private:
  [[noreturn]] void fail(const char* what) const;

  const FileSystem& files_;
  std::string file_, temporary_;         // temporary_: "" when written to directly
  std::optional<TemporaryPath> listed_;  // the temporary name
  int fd_ = -1;
  bool committed_ = false;
};

// A file mapped read-only into memory. Several threads may read it; the file must not shrink while it is mapped.
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
// Lets the system reclaim the memory of these bytes of a mapped file; the next access reads them from disk again.
void forget_pages(std::span<const std::byte> bytes);

}  // namespace weft
