#include "weft/train/tensorboard.h"

#include <array>
#include <cerrno>
#include <chrono>
#include <cmath>
#include <cstring>

#include <unistd.h>

#include "weft/base/error.h"

namespace weft {

namespace {

constexpr std::array<std::uint32_t, 256> crc_table = [] {
  std::array<std::uint32_t, 256> table{};
  for (std::uint32_t i = 0; i < 256; ++i) {
    std::uint32_t crc = i;
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ (crc & 1 ? 0x82f63b78u : 0u);
    table[i] = crc;
  }
  return table;
}();

template <class T>
std::string raw(T value) {
  char bytes[sizeof(T)];
  std::memcpy(bytes, &value, sizeof(T));
  return {bytes, sizeof(T)};
}

// Masked, because checksums of data that contains checksums are weak.
std::string masked_crc(std::string_view bytes) {
  const std::uint32_t crc = crc32c(bytes);
  return raw(((crc >> 15) | (crc << 17)) + 0xa282ead8u);
}

std::string framed(std::string_view data) {
  const std::string length = raw(static_cast<std::uint64_t>(data.size()));
  return length + masked_crc(length) + std::string(data) + masked_crc(data);
}

// Protocol buffers: a field is a key (number * 8 + wire type) and its value.
enum WireType : std::uint8_t { varint = 0, fixed64 = 1, bytes = 2, fixed32 = 5 };

char key(int field, WireType type) { return static_cast<char>(field << 3 | type); }

std::string as_varint(std::uint64_t value) {
  std::string text;
  for (; value >= 0x80; value >>= 7) text += static_cast<char>((value & 0x7f) | 0x80);
  return text + static_cast<char>(value);
}

std::string as_bytes(int field, std::string_view data) {
  return key(field, bytes) + as_varint(data.size()) + std::string(data);
}

std::string wall_time_field(double wall_time) { return key(1, fixed64) + raw(wall_time); }

double now() { return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count(); }

}  // namespace

std::uint32_t crc32c(std::string_view data) {
  std::uint32_t crc = 0xffffffffu;
  for (unsigned char byte : data) crc = crc_table[(crc ^ byte) & 0xff] ^ (crc >> 8);
  return ~crc;
}

std::string tensorboard_version_record(double wall_time) {
  return framed(wall_time_field(wall_time) + as_bytes(3, "brain.Event:2"));
}

std::string tensorboard_restart_record(double wall_time, std::int64_t step) {
  const std::string started = key(1, varint) + as_varint(1);  // SessionLog.status = START
  return framed(wall_time_field(wall_time) + key(2, varint) + as_varint(static_cast<std::uint64_t>(step)) +
                as_bytes(7, started));
}

std::string tensorboard_scalar_record(double wall_time, std::int64_t step, std::string_view tag, float value) {
  std::string event = wall_time_field(wall_time);
  if (step != 0) event += key(2, varint) + as_varint(static_cast<std::uint64_t>(step));  // a missing field means 0
  const std::string point = as_bytes(1, tag) + key(2, fixed32) + raw(value);
  return framed(event + as_bytes(5, as_bytes(1, point)));
}

TensorboardWriter::TensorboardWriter(const std::filesystem::path& folder, std::int64_t iteration) {
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  char host[256] = "localhost";
  ::gethostname(host, sizeof host - 1);
  const double wall_time = now();
  // "x" fails if the file exists, so two writers of one process in the same second get two files.
  for (int unique = 0; file_ == nullptr && unique < 1000; ++unique) {
    path_ = folder / fmt::format("events.out.tfevents.{:010}.{}.{}.{}", static_cast<std::int64_t>(wall_time), host,
                                 ::getpid(), unique);
    file_ = std::fopen(path_.c_str(), "wbx");
    if (file_ == nullptr && errno != EEXIST) break;
  }
  if (file_ == nullptr) {
    throw UserError("cannot write {}: {} (--tensorboard-dir)", path_.string(), std::strerror(errno));
  }
  write(tensorboard_version_record(wall_time));
  if (iteration > 0) write(tensorboard_restart_record(wall_time, iteration + 1));
}

TensorboardWriter::~TensorboardWriter() { std::fclose(file_); }

void TensorboardWriter::write(std::string_view record) {
  if (std::fwrite(record.data(), 1, record.size(), file_) != record.size() || std::fflush(file_) != 0) {
    throw RunError("cannot write {}: {}", path_.string(), std::strerror(errno));
  }
}

void TensorboardWriter::scalar(std::string_view tag, std::int64_t step, double value) {
  write(tensorboard_scalar_record(now(), step, tag, static_cast<float>(value)));
}

}  // namespace weft
