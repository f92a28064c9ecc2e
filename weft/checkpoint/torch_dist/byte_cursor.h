// Reads little-endian numbers and ranges from bytes that may be damaged: whatever does not fit is a UserError.
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>

#include "weft/base/error.h"

namespace weft {

class ByteCursor {
 public:
  // `where` begins every message and must outlive the cursor, as the bytes must.
  ByteCursor(std::span<const std::byte> bytes, const std::string& where) : bytes_(bytes), where_(where) {}

  std::size_t position() const { return position_; }
  std::size_t left() const { return bytes_.size() - position_; }

  // `what` names in messages what was to be read.
  void go_to(std::uint64_t position, std::string_view what) {
    if (position > bytes_.size()) {
      throw UserError("{}: {} would begin at byte {}, and there are {}", where_, what, position, bytes_.size());
    }
    position_ = static_cast<std::size_t>(position);
  }
  std::span<const std::byte> take(std::uint64_t count, std::string_view what) {
    if (count > left()) {
      throw UserError("{}: truncated or damaged: {} at byte {} takes {} bytes, and {} are left", where_, what,
                      position_, count, left());
    }
    const auto taken = bytes_.subspan(position_, static_cast<std::size_t>(count));
    position_ += taken.size();
    return taken;
  }
  std::string_view take_text(std::uint64_t count, std::string_view what) {
    const auto taken = take(count, what);
    return {reinterpret_cast<const char*>(taken.data()), taken.size()};
  }
  template <std::integral T>
  T number(std::string_view what) {
    T value;
    std::memcpy(&value, take(sizeof(T), what).data(), sizeof(T));
    return value;
  }

 private:
  std::span<const std::byte> bytes_;
  const std::string& where_;
  std::size_t position_ = 0;
};

}  // namespace weft
