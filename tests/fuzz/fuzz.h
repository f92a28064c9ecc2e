// What the entry points share. A reader may refuse its input, with a UserError; anything else that ends it is a fault.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "weft/base/error.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);

namespace weft {

inline std::string_view text_of(const std::uint8_t* data, std::size_t size) {
  return {reinterpret_cast<const char*>(data), size};
}
inline std::span<const std::byte> bytes_of(const std::uint8_t* data, std::size_t size) {
  return {reinterpret_cast<const std::byte*>(data), size};
}

template <class Action>
void read_or_refuse(Action&& action) {
  try {
    action();
  } catch (const UserError&) {
  }
}

}  // namespace weft
