#include "weft/base/json.h"

#include <cerrno>
#include <cstring>
#include <fstream>
#include <iterator>

#include <fcntl.h>
#include <nlohmann/json.hpp>
#include <unistd.h>

#include "weft/base/error.h"

namespace weft {

std::string reason_of(const std::exception& error) {
  const std::string_view text = error.what();
  const std::size_t end = text.starts_with('[') ? text.find("] ") : std::string_view::npos;
  return std::string(end == std::string_view::npos ? text : text.substr(end + 2));
}

Json parse_json(std::string_view text, const std::string& where) {
  try {
    return Json::parse(text);
  } catch (const Json::exception& e) {
    throw UserError("{}: not valid JSON: {}", where, reason_of(e));
  }
}

Json read_json(const std::filesystem::path& file) { return parse_json(read_file(file), file.string()); }

std::string read_file(const std::filesystem::path& file) {
  std::error_code error;  // what cannot be looked at cannot be opened either
  if (std::filesystem::is_directory(file, error)) throw UserError("{} is a directory, not a file", file.string());
  std::ifstream in(file, std::ios::binary);
  if (!in) throw UserError("cannot read {}: {}", file.string(), std::strerror(errno));
  try {
    return {std::istreambuf_iterator<char>(in), {}};
  } catch (const std::ios_base::failure& failure) {
    throw UserError("cannot read {}: {}", file.string(), failure.code().message());
  }
}

void write_file_atomically(const std::filesystem::path& file, std::string_view bytes) {
  const std::string temporary = fmt::format("{}.tmp-{}", file.string(), ::getpid());
  const auto fail = [&](const char* what) {
    const int error = errno;
    ::unlink(temporary.c_str());
    throw RunError("cannot write {}: {}: {}", file.string(), what, std::strerror(error));
  };
  const int fd = ::open(temporary.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0644);
  if (fd < 0) fail("open");
  while (!bytes.empty()) {
    const ssize_t n = ::write(fd, bytes.data(), bytes.size());
    if (n < 0) {
      ::close(fd);
      fail("write");
    }
    bytes.remove_prefix(static_cast<std::size_t>(n));
  }
  if (::fsync(fd) != 0) {
    ::close(fd);
    fail("fsync");
  }
  ::close(fd);
  if (::rename(temporary.c_str(), file.c_str()) != 0) fail("rename");
}

}  // namespace weft
