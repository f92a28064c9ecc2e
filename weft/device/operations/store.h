#pragma once

#include <cstdint>

namespace weft {

// Whether a result replaces what is there or is added to it.
enum class Store : std::uint8_t { write, add };

}  // namespace weft
