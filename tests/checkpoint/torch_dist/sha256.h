// SHA-256 (FIPS 180-4), as expected.json of the golden checkpoints has it.
#pragma once

#include <cstddef>
#include <span>
#include <string>

namespace weft {

std::string sha256(std::span<const std::byte> bytes);  // in hexadecimal

}  // namespace weft
