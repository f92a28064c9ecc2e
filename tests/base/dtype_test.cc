// A float is a bf16 weight and a remainder, in every bit.
#include "weft/base/dtype.h"

#include <array>
#include <cmath>
#include <cstdlib>
#include <limits>

#include <gtest/gtest.h>

namespace weft {
namespace {

std::uint32_t bits_of(float x) { return std::bit_cast<std::uint32_t>(x); }
std::uint32_t joined(std::uint32_t bits) { return bits_of(join_float(split_float(std::bit_cast<float>(bits)))); }

// All upper halves with lower ones at and around every place where something changes, and some in between; the loop over
// all of 2^32 takes seconds, and is run with WEFT_ALL_FLOATS set.
template <class Body>
void for_each_float(const Body& body) {
  if (std::getenv("WEFT_ALL_FLOATS") != nullptr) {
    std::uint32_t bits = 0;
    do body(bits);
    while (++bits != 0);
    return;
  }
  constexpr std::array<std::uint32_t, 12> lower = {0,      1,      2,      0x1234, 0x7ffe, 0x7fff,
                                                   0x8000, 0x8001, 0x8002, 0xbeef, 0xfffe, 0xffff};
  for (std::uint32_t upper = 0; upper < 0x10000; ++upper) {
    for (const std::uint32_t low : lower) body(upper << 16 | low);
    for (std::uint32_t i = 0; i < 16; ++i) body(upper << 16 | ((upper * 40503u + i * 4099u) & 0xffffu));
  }
}

TEST(SplitFloat, JoinsToTheSameBits) {
  std::uint64_t wrong = 0;
  for_each_float([&](std::uint32_t bits) {
    const bool nan = (bits & 0x7fffffffu) > 0x7f800000u;
    const SplitFloat split = split_float(std::bit_cast<float>(bits));
    if (nan)
      wrong += !std::isnan(join_float(split)) || !std::isnan(static_cast<float>(split.weight)) ||
               joined(joined(bits)) != joined(bits);
    else
      wrong += joined(bits) != bits;
  });
  EXPECT_EQ(wrong, 0u);
}

// Nearest, and as bfloat16 rounds but for halves, which go away from zero.
TEST(SplitFloat, TheWeightIsTheNearestNumber) {
  std::uint64_t wrong = 0, halves = 0;
  for_each_float([&](std::uint32_t bits) {
    const float x = std::bit_cast<float>(bits);
    if (std::isnan(x)) return;
    const std::uint16_t weight = split_float(x).weight.bits, even = bfloat16(x).bits;
    const bool half = (bits & 0xffffu) == 0x8000u;
    halves += half;
    wrong += weight != (half ? static_cast<std::uint16_t>((bits >> 16) + 1) : even);
  });
  EXPECT_EQ(wrong, 0u);
  EXPECT_GT(halves, 0u);
}

TEST(SplitFloat, WhatIsNotFinite) {
  const float infinity = std::numeric_limits<float>::infinity(), largest = std::numeric_limits<float>::max();
  for (const float sign : {1.0f, -1.0f}) {
    const SplitFloat split = split_float(sign * infinity);
    EXPECT_EQ(static_cast<float>(split.weight), sign * infinity);
    EXPECT_EQ(split.remainder, 0);
    EXPECT_EQ(static_cast<float>(split_float(sign * largest).weight), sign * infinity) << "rounds to it";
    EXPECT_EQ(join_float(split_float(sign * largest)), sign * largest) << "and is not";
  }
  // Rounded like a number, the first two would be zero.
  for (const std::uint32_t bits : {0x7fffffffu, 0xffffffffu, 0x7f800001u, 0xff80ffffu, 0x7fc00000u, 0xffc00000u}) {
    const SplitFloat split = split_float(std::bit_cast<float>(bits));
    EXPECT_TRUE(std::isnan(static_cast<float>(split.weight)) && std::isnan(join_float(split))) << bits;
    EXPECT_EQ(split.weight.bits >> 15, bits >> 31) << "the sign stays";
  }
}

}  // namespace
}  // namespace weft
