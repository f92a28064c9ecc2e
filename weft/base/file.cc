#include "weft/base/file.h"

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <iterator>
#include <memory>
#include <utility>

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "weft/base/error.h"

namespace weft {

std::string read_file(const std::filesystem::path& file) {
  std::error_code error;  // ignored: opening fails for the same reason
  if (std::filesystem::is_directory(file, error)) throw UserError("{} is a directory, not a file", file.string());
  std::ifstream in(file, std::ios::binary);
  if (!in) throw UserError("cannot read {}: {}", file.string(), std::strerror(errno));
  try {
    return {std::istreambuf_iterator<char>(in), {}};
  } catch (const std::ios_base::failure& failure) {
    throw UserError("cannot read {}: {}", file.string(), failure.code().message());
  }
}

namespace {

class Descriptor {
 public:
  explicit Descriptor(int fd) : fd_(fd) {}
  ~Descriptor() { ::close(fd_); }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  operator int() const { return fd_; }

 private:
  int fd_;
};

struct OpenFile {
  std::unique_ptr<Descriptor> fd;
  std::size_t size = 0;
};

// Opening a pipe would wait for a writer: it is opened without, and then seen not to be a file.
OpenFile open_regular_file(const std::filesystem::path& file) {
  const int fd = ::open(file.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) throw UserError("cannot read {}: {}", file.string(), std::strerror(errno));
  OpenFile open{std::make_unique<Descriptor>(fd)};
  struct stat status {};
  if (::fstat(fd, &status) != 0 || !S_ISREG(status.st_mode))
    throw UserError("cannot read {}: not a regular file", file.string());
  open.size = static_cast<std::size_t>(status.st_size);
  return open;
}

}  // namespace

std::string read_regular_file(const std::filesystem::path& file) {
  const OpenFile open = open_regular_file(file);
  std::string bytes(open.size, '\0');
  std::size_t done = 0;
  while (done < bytes.size()) {
    const ssize_t n = ::read(*open.fd, bytes.data() + done, bytes.size() - done);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) throw UserError("cannot read {}: {}", file.string(), std::strerror(errno));
    if (n == 0) break;  // it has become shorter
    done += static_cast<std::size_t>(n);
  }
  bytes.resize(done);
  return bytes;
}

bool is_there(const std::filesystem::path& path) {
  std::error_code error;
  const bool there = std::filesystem::exists(path, error);
  if (error) throw UserError("cannot read {}: {}", path.string(), error.message());
  return there;
}

void write_file_atomically(const std::filesystem::path& file, std::string_view bytes, const FileSystem& files) {
  NewFile out(file, files);
  out.write(std::as_bytes(std::span(bytes)));
  out.commit();
}

namespace {

// The descriptor (stdout or stderr) that a path refers to, or -1. Others may write to that file too, so it must not be
// replaced.
int output_of(const std::string& file) {
  struct stat named {
  }, output{};
  if (::stat(file.c_str(), &named) != 0) return -1;
  for (const int fd : {STDOUT_FILENO, STDERR_FILENO})
    if (::fstat(fd, &output) == 0 && output.st_dev == named.st_dev && output.st_ino == named.st_ino) return fd;
  return -1;
}

}  // namespace

NewFile::NewFile(const std::filesystem::path& file, const FileSystem& files) : files_(files), file_(file.string()) {
  namespace fs = std::filesystem;
  std::error_code error;  // ignored: opening fails for the same reason
  if (const int output = output_of(file_); output >= 0) {
    std::fflush(stdout);
    fd_ = ::dup(output);
  } else if (fs::is_other(fs::status(file, error))) {
    fd_ = files_.open(file_, O_WRONLY);
  } else {
    if (fs::is_symlink(fs::symlink_status(file, error))) file_ = fs::weakly_canonical(file, error).string();
    temporary_ = fmt::format("{}.tmp-{}", file_, ::getpid());
    listed_.emplace(temporary_);
    fd_ = files_.open(temporary_, O_WRONLY | O_CREAT | O_TRUNC);
  }
  if (fd_ < 0) fail("open");
}

NewFile::~NewFile() {
  if (fd_ >= 0) files_.close(fd_);
  if (!committed_ && !temporary_.empty()) files_.remove_all(temporary_);
}

void NewFile::write(std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const std::ptrdiff_t n = files_.write(fd_, bytes.data(), std::min<std::size_t>(bytes.size(), std::size_t{1} << 30));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) fail("write");
    bytes = bytes.subspan(static_cast<std::size_t>(n));
  }
}

void NewFile::sync() {
  if (!temporary_.empty() && files_.fsync(fd_) != 0) fail("fsync");
}

void NewFile::commit() {
  sync();
  if (files_.close(std::exchange(fd_, -1)) != 0) fail("close");
  int renamed = 0;
  if (listed_) listed_->release([&] { renamed = files_.rename(temporary_, file_); });
  if (renamed != 0) fail("rename");
  committed_ = true;
}

void NewFile::fail(const char* what) const {
  throw RunError("cannot write {}: {}: {}", file_, what, std::strerror(errno));
}

MappedFile::MappedFile(const std::filesystem::path& file) {
  const OpenFile open = open_regular_file(file);
  void* const mapped = open.size > 0 ? ::mmap(nullptr, open.size, PROT_READ, MAP_SHARED, *open.fd, 0) : nullptr;
  if (mapped == MAP_FAILED) throw RunError("cannot map {}: {}", file.string(), std::strerror(errno));
  size_ = open.size;
  data_ = static_cast<const std::byte*>(mapped);
}

MappedFile::~MappedFile() {
  if (data_ != nullptr) ::munmap(const_cast<std::byte*>(data_), size_);
}

void forget_pages(std::span<const std::byte> bytes) {
  const auto page = static_cast<std::uintptr_t>(::sysconf(_SC_PAGESIZE));
  // Only the pages that lie entirely within `bytes`.
  const auto begin = (reinterpret_cast<std::uintptr_t>(bytes.data()) + page - 1) / page * page;
  const auto end = (reinterpret_cast<std::uintptr_t>(bytes.data()) + bytes.size()) / page * page;
  if (begin < end) ::madvise(reinterpret_cast<void*>(begin), end - begin, MADV_DONTNEED);
}

}  // namespace weft
