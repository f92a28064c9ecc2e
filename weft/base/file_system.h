// The calls with which files are written. Tests pass one that fails; no other class derives from it.
#pragma once

#include <cstddef>
#include <filesystem>
#include <string>

namespace weft {

// Each call does what the system call of that name does: -1 and errno when it fails. Any thread may call it.
class FileSystem {
 public:
  virtual ~FileSystem() = default;

  virtual int open(const std::string& path, int flags) const;  // what it makes has mode 0644
  virtual std::ptrdiff_t write(int fd, const std::byte* bytes, std::size_t count) const;
  virtual int fsync(int fd) const;
  virtual int close(int fd) const;
  virtual int rename(const std::string& from, const std::string& to) const;
  virtual int exchange(const std::string& one, const std::string& other) const;  // renameat2: both stay
  virtual int mkdir(const std::string& path) const;
  virtual int remove_all(const std::string& path) const;  // a file, or a folder with what is in it
};

// The machine's. It has no state.
const FileSystem& machine_files();

// RunError when it fails.
void sync_folder(const std::filesystem::path& folder, const FileSystem& files);
void remove_folder(const std::filesystem::path& folder, const FileSystem& files);

}  // namespace weft
