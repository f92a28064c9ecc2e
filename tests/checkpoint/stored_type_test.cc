#include "weft/checkpoint/stored_type.h"

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include <gtest/gtest.h>

namespace weft {
namespace {

template <class From>
const std::byte* bytes_of(const From& value) {
  return reinterpret_cast<const std::byte*>(&value);
}

template <class To, class From>
To converted(StoredType from, const From& value) {
  To result{};
  EXPECT_TRUE(convert(from, bytes_of(value), dtype_of<To>(), &result, 1));
  return result;
}

// The neighbour of x to which it must round, found in double by searching all 16-bit patterns. Of two equally near the
// even one, or (away) the larger.
std::uint16_t nearest_by_search(double x, const std::vector<double>& values, bool away) {
  std::uint16_t best = 0;
  for (std::uint32_t bits = 0; bits < values.size(); ++bits) {
    const double distance = std::abs(values[bits] - x), best_distance = std::abs(values[best] - x);
    if (distance < best_distance || (distance == best_distance && (away || (bits % 2 == 0 && best % 2 == 1)))) {
      best = static_cast<std::uint16_t>(bits);
    }
  }
  return best;
}

TEST(StoredType, EveryNameIsFoundAgain) {
  int types = 0;
  for (int i = 0; i <= static_cast<int>(StoredType::u64); ++i, ++types) {
    const auto type = static_cast<StoredType>(i);
    EXPECT_EQ(stored_type_of(name_of(type)), type);
  }
  EXPECT_EQ(types, 22);
  EXPECT_EQ(bits_of(StoredType::f4), 4);
  EXPECT_EQ(bits_of(StoredType::f6_e3m2), 6);
  EXPECT_EQ(bits_of(StoredType::bf16), 16);
  EXPECT_EQ(bits_of(StoredType::c64), 64);
  EXPECT_FALSE(stored_type_of("F128"));
  EXPECT_FALSE(stored_type_of("f32"));
}

TEST(StoredType, EveryHalfIsWhatItsFieldsSay) {
  for (std::uint32_t bits = 0; bits < 0x10000; ++bits) {
    const int exponent = static_cast<int>(bits >> 10 & 31);
    const double fraction = bits & 0x3ff, sign = bits & 0x8000 ? -1 : 1;
    const float value = half_to_float(static_cast<std::uint16_t>(bits));
    if (exponent == 31 && fraction != 0) {
      ASSERT_TRUE(std::isnan(value));
      ASSERT_TRUE(std::isnan(half_to_float(float_to_half(value))));
      continue;
    }
    const double expected = exponent == 31  ? sign * std::numeric_limits<double>::infinity()
                            : exponent == 0 ? sign * std::ldexp(fraction, -24)
                                            : sign * std::ldexp(1024 + fraction, exponent - 25);
    ASSERT_EQ(value, expected) << bits;
    ASSERT_EQ(float_to_half(value), bits);
  }
}

TEST(StoredType, DoublesRoundOnceToHalfAndBfloat16) {
  std::vector<double> halves, brains;  // positive and finite
  for (std::uint32_t bits = 0; bits < 0x7c00; ++bits) halves.push_back(half_to_float(static_cast<std::uint16_t>(bits)));
  for (std::uint32_t bits = 0; bits < 0x7f80; ++bits) {
    brains.push_back(std::bit_cast<float>(bits << 16));
  }
  const auto check = [&](double x) {
    std::uint16_t half = 0, brain = 0;
    store_doubles(&x, StoredType::f16, reinterpret_cast<std::byte*>(&half), 1);
    store_doubles(&x, StoredType::bf16, reinterpret_cast<std::byte*>(&brain), 1);
    EXPECT_EQ(half, nearest_by_search(x, halves, false)) << x;
    EXPECT_EQ(brain, nearest_by_search(x, brains, true)) << x;
    EXPECT_EQ(converted<bfloat16>(StoredType::f64, x).bits, brain) << x;
    const auto single = static_cast<float>(x);
    EXPECT_EQ(converted<bfloat16>(StoredType::f32, single).bits,
              nearest_by_search(static_cast<double>(single), brains, true))
        << x;
  };
  for (const double base : {1.0, 1.5, 3.140625, 2048.0, 0x1p-14, 0x1p-20, 60000.0}) {
    for (const double ulp : {std::ldexp(base, -8), std::ldexp(base, -11), 0x1p-25}) {
      check(base);
      check(base + ulp);                  // a tie in one of the formats
      check(base + ulp * (1 + 0x1p-30));  // just above: rounding through float would see a tie
      check(base + ulp * (1 - 0x1p-30));
      check(base + 3 * ulp);
    }
  }
  // What rounding twice gets wrong.
  EXPECT_EQ(float(converted<bfloat16>(StoredType::f64, 1 + 0x1p-8 + 0x1p-40)), 1 + 0x1p-7f);
}

TEST(StoredType, OverflowIsInfinityAndNanStays) {
  const double infinity = std::numeric_limits<double>::infinity();
  EXPECT_EQ(converted<float>(StoredType::f64, 1e300), infinity);
  EXPECT_EQ(float(converted<bfloat16>(StoredType::f64, -1e300)), -infinity);
  EXPECT_EQ(float(converted<bfloat16>(StoredType::f32, std::numeric_limits<float>::max())), infinity);
  EXPECT_EQ(float_to_half(65519.0f), 0x7bff);
  EXPECT_EQ(float_to_half(65520.0f), 0x7c00);
  EXPECT_EQ(float_to_half(-1e30f), 0xfc00);
  EXPECT_TRUE(std::isnan(converted<float>(StoredType::f64, std::nan(""))));
  EXPECT_TRUE(std::isnan(converted<bfloat16>(StoredType::f64, std::nan(""))));
  EXPECT_TRUE(std::isnan(converted<double>(StoredType::f16, std::uint16_t{0x7c01})));
  EXPECT_EQ(converted<float>(StoredType::f64, 1e-60), 0.0f);
  EXPECT_TRUE(std::signbit(converted<float>(StoredType::f64, -1e-60)));
}

TEST(StoredType, WideningIsExact) {
  EXPECT_EQ(converted<double>(StoredType::f32, 0.1f), static_cast<double>(0.1f));
  EXPECT_EQ(converted<float>(StoredType::bf16, bfloat16(-3.5f)), -3.5f);
  EXPECT_EQ(converted<double>(StoredType::f16, std::uint16_t{0x0001}), 0x1p-24);
  EXPECT_EQ(converted<float>(StoredType::f16, std::uint16_t{0x3555}), 0x1.554p-2f);
  EXPECT_EQ(float(converted<bfloat16>(StoredType::f16, std::uint16_t{0xc000})), -2.0f);
}

TEST(StoredType, ReadsFromAnyAddress) {
  const std::vector<float> values = {1.25f, -2.5f, 3e8f};
  std::vector<std::byte> shifted(1 + values.size() * sizeof(float));
  std::memcpy(shifted.data() + 1, values.data(), values.size() * sizeof(float));
  std::vector<double> read(3);
  ASSERT_TRUE(convert(StoredType::f32, shifted.data() + 1, DType::f64, read.data(), 3));
  EXPECT_EQ(read, (std::vector<double>{1.25, -2.5, 3e8f}));
}

TEST(StoredType, IntegersMustFit) {
  EXPECT_EQ(converted<std::int32_t>(StoredType::i64, std::int64_t{-7}), -7);
  EXPECT_EQ(converted<std::int64_t>(StoredType::u16, std::uint16_t{65535}), 65535);
  EXPECT_EQ(converted<std::int32_t>(StoredType::i8, std::int8_t{-128}), -128);
  std::int32_t narrow = 0;
  const std::int64_t wide = std::int64_t{1} << 31;
  EXPECT_FALSE(convert(StoredType::i64, bytes_of(wide), DType::i32, &narrow, 1));
  std::int64_t signed_value = 0;
  const std::uint64_t large = std::uint64_t{1} << 63;
  EXPECT_FALSE(convert(StoredType::u64, bytes_of(large), DType::i64, &signed_value, 1));
  EXPECT_FALSE(is_convertible(StoredType::i32, DType::f32));
  EXPECT_FALSE(is_convertible(StoredType::f32, DType::i32));
  EXPECT_FALSE(is_convertible(StoredType::f8_e4m3, DType::f32));
  EXPECT_FALSE(is_convertible(StoredType::boolean, DType::i32));
}

}  // namespace
}  // namespace weft
