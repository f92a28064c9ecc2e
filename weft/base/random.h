// Counter-based random numbers (Philox 4x32-10): a value is a pure function of (key, index), so it never depends on the
// layout, the thread, or what was drawn before.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

namespace weft {

// A key from a seed and a name (FNV-1a of the name, mixed with the seed).
std::uint64_t random_key(std::uint64_t seed, std::string_view name);

std::array<std::uint32_t, 4> philox(std::uint64_t key, std::uint64_t counter);

// Uniform in (0, 1), never 0 or 1.
double random_uniform(std::uint64_t key, std::uint64_t index);
// Standard normal (Box-Muller on the pair of uniforms that the index belongs to).
double random_normal(std::uint64_t key, std::uint64_t index);
// Uniform in [0, bound).
std::uint64_t random_below(std::uint64_t key, std::uint64_t index, std::uint64_t bound);

}  // namespace weft
