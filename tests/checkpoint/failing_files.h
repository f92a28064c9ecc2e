// A file system that fails on purpose, and a disk that loses what was not flushed to it.
#pragma once

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <filesystem>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "weft/base/error.h"
#include "weft/base/file_system.h"
#include "weft/base/random.h"

namespace weft {

enum class FaultKind : std::uint8_t {
  error,  // one call fails with EIO
  full,   // a write goes half through; from then on there is no space for anything
  crash,  // power is lost: the call may be half done, no later one does anything, and what was not flushed may be gone
  none,
};

// Calls are counted from 0; `at` is the first that fails.
class FailingFiles final : public FileSystem {
 public:
  FailingFiles(FaultKind kind, std::int64_t at, std::uint64_t seed = 0) : kind_(kind), at_(at), seed_(seed) {}
  ~FailingFiles() override {
    for (const auto& [fd, file] : files_) ::close(file.own);
  }

  std::int64_t calls() const { return calls_; }
  bool failed() const { return failed_; }

  int open(const std::string& path, int flags) const override {
    const std::lock_guard lock(mutex_);
    if (!allowed(true)) return -1;
    const int fd = FileSystem::open(path, flags);
    if (fd < 0) return fd;
    const auto at = files_.find(fd);
    if (at != files_.end()) {  // its number is used again
      closed_.push_back(at->second);
      files_.erase(at);
    }
    files_[fd] = {::dup(fd), path, (flags & O_DIRECTORY) != 0, 0, 0};
    return fd;
  }
  std::ptrdiff_t write(int fd, const std::byte* bytes, std::size_t count) const override {
    const std::lock_guard lock(mutex_);
    if (calls_ == at_ && kind_ != FaultKind::none && kind_ != FaultKind::error) count = count * random(100) / 100;
    if (!allowed(true, fd, bytes, count)) return -1;
    const std::ptrdiff_t written = FileSystem::write(fd, bytes, count);
    if (written > 0) files_[fd].written += written;
    return written;
  }
  int fsync(int fd) const override {
    const std::lock_guard lock(mutex_);
    if (!allowed(true)) return -1;
    File& file = files_[fd];
    file.synced = file.written;
    if (file.folder)
      std::erase_if(renames_, [&](const Rename& rename) {
        return std::filesystem::path(rename.to).parent_path() == std::filesystem::path(file.path);
      });
    return 0;  // the real thing takes time and changes nothing that a test could see
  }
  int close(int fd) const override {
    const std::lock_guard lock(mutex_);
    const bool fails = !allowed(false);
    FileSystem::close(fd);  // or descriptors run out
    errno = EIO;
    return fails ? -1 : 0;
  }
  int rename(const std::string& from, const std::string& to) const override {
    const std::lock_guard lock(mutex_);
    if (!allowed(false)) return -1;
    if (!std::filesystem::exists(to)) renames_.push_back({from, to});
    return FileSystem::rename(from, to);
  }
  int exchange(const std::string& one, const std::string& other) const override {
    const std::lock_guard lock(mutex_);
    return allowed(false) ? FileSystem::exchange(one, other) : -1;
  }
  int mkdir(const std::string& path) const override {
    const std::lock_guard lock(mutex_);
    return allowed(true) ? FileSystem::mkdir(path) : -1;
  }
  int remove_all(const std::string& path) const override {
    const std::lock_guard lock(mutex_);
    if (!allowed(false)) {
      if (kind_ == FaultKind::crash && calls_ == at_ + 1 && std::filesystem::is_directory(path))
        for (const auto& entry : std::filesystem::directory_iterator(path)) {  // half removed
          std::filesystem::remove(entry.path());
          break;
        }
      return -1;
    }
    return FileSystem::remove_all(path);
  }

 private:
  struct File {
    int own = -1;  // another descriptor of it, to reach it wherever it has been moved
    std::string path;
    bool folder = false;
    std::int64_t written = 0, synced = 0;
  };
  struct Rename {
    std::string from, to;
  };

  std::size_t random(std::uint64_t below) const {
    return static_cast<std::size_t>(random_below(random_key(seed_, "fault"), draws_++, below));
  }

  // Counts the call; false, with errno, if it fails. takes_space: a full disk refuses it. For a write: what of it gets there.
  bool allowed(bool takes_space, int fd = -1, const std::byte* bytes = nullptr, std::size_t count = 0) const {
    const std::int64_t call = calls_++;
    if (kind_ == FaultKind::none || call < at_) return true;
    if (kind_ == FaultKind::error) {
      if (call > at_) return true;
      errno = EIO;
    } else if (kind_ == FaultKind::full) {
      if (!takes_space) return true;
      if (call == at_ && count > 0) return failed_ = true;  // a short write
      errno = ENOSPC;
    } else {
      if (call == at_) {
        if (count > 0) files_[fd].written += FileSystem::write(fd, bytes, count);
        lose();
      }
      errno = EIO;
    }
    failed_ = true;
    return false;
  }

  // What was not flushed is cut off or zero; names that were not flushed may be the old ones.
  void lose() const {
    for (const auto& [fd, file] : files_) closed_.push_back(file);
    files_.clear();
    for (const File& file : closed_) {
      if (!file.folder && file.written > file.synced) {
        const auto keep =
            file.synced + static_cast<std::int64_t>(random(static_cast<std::uint64_t>(file.written - file.synced + 1)));
        const bool cut = ::ftruncate(file.own, keep) == 0;
        if (cut && random(2) == 0) WEFT_CHECK(::ftruncate(file.own, file.written) == 0, "the file cannot grow again");
      }
      ::close(file.own);
    }
    closed_.clear();
    while (!renames_.empty() && random(3) > 0) {
      if (std::filesystem::exists(renames_.back().to)) FileSystem::rename(renames_.back().to, renames_.back().from);
      renames_.pop_back();
    }
  }

  FaultKind kind_;
  std::int64_t at_;
  std::uint64_t seed_;
  mutable std::mutex mutex_;
  mutable std::int64_t calls_ = 0;
  mutable std::uint64_t draws_ = 0;
  mutable bool failed_ = false;
  mutable std::map<int, File> files_;  // by the writer's descriptor
  mutable std::vector<File> closed_;
  mutable std::vector<Rename> renames_;  // not flushed yet, in their order
};

}  // namespace weft
