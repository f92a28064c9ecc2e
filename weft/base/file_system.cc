#include "weft/base/file_system.h"

#include <cerrno>
#include <cstring>

#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#include "weft/base/error.h"

namespace weft {

int FileSystem::open(const std::string& path, int flags) const { return ::open(path.c_str(), flags | O_CLOEXEC, 0644); }

std::ptrdiff_t FileSystem::write(int fd, const std::byte* bytes, std::size_t count) const {
  return ::write(fd, bytes, count);
}

int FileSystem::fsync(int fd) const { return ::fsync(fd); }

int FileSystem::close(int fd) const { return ::close(fd); }

int FileSystem::rename(const std::string& from, const std::string& to) const {
  return ::rename(from.c_str(), to.c_str());
}

int FileSystem::exchange(const std::string& one, const std::string& other) const {
  return ::renameat2(AT_FDCWD, one.c_str(), AT_FDCWD, other.c_str(), RENAME_EXCHANGE);
}

int FileSystem::mkdir(const std::string& path) const { return ::mkdir(path.c_str(), 0777); }

int FileSystem::remove_all(const std::string& path) const {
  std::error_code error;
  std::filesystem::remove_all(path, error);
  errno = error.value();
  return error ? -1 : 0;
}

const FileSystem& machine_files() {
  static const FileSystem files;
  return files;
}

void sync_folder(const std::filesystem::path& folder, const FileSystem& files) {
  const int fd = files.open(folder.string(), O_RDONLY | O_DIRECTORY);
  if (fd < 0) throw RunError("cannot open the folder {}: {}", folder.string(), std::strerror(errno));
  const bool synced = files.fsync(fd) == 0;
  const int why = errno;
  files.close(fd);
  // Some network file systems cannot flush a folder: they do it with every change.
  if (!synced && why != EINVAL && why != ENOTSUP)
    throw RunError("cannot write the folder {} to disk: {}", folder.string(), std::strerror(why));
}

void remove_folder(const std::filesystem::path& folder, const FileSystem& files) {
  if (files.remove_all(folder.string()) != 0)
    throw RunError("cannot remove {}: {}", folder.string(), std::strerror(errno));
}

}  // namespace weft
