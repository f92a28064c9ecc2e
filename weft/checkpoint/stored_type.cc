#include "weft/checkpoint/stored_type.h"

#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <utility>

#include "weft/base/error.h"

namespace weft {
namespace {

static_assert(std::endian::native == std::endian::little, "safetensors files are little-endian");

struct TypeFacts {
  StoredType type;
  std::string_view name;
  int bits;
};
constexpr std::array<TypeFacts, 22> types = {{
    {StoredType::boolean, "BOOL", 8},
    {StoredType::f4, "F4", 4},
    {StoredType::f6_e2m3, "F6_E2M3", 6},
    {StoredType::f6_e3m2, "F6_E3M2", 6},
    {StoredType::u8, "U8", 8},
    {StoredType::i8, "I8", 8},
    {StoredType::f8_e5m2, "F8_E5M2", 8},
    {StoredType::f8_e4m3, "F8_E4M3", 8},
    {StoredType::f8_e8m0, "F8_E8M0", 8},
    {StoredType::f8_e4m3fnuz, "F8_E4M3FNUZ", 8},
    {StoredType::f8_e5m2fnuz, "F8_E5M2FNUZ", 8},
    {StoredType::i16, "I16", 16},
    {StoredType::u16, "U16", 16},
    {StoredType::f16, "F16", 16},
    {StoredType::bf16, "BF16", 16},
    {StoredType::i32, "I32", 32},
    {StoredType::u32, "U32", 32},
    {StoredType::f32, "F32", 32},
    {StoredType::c64, "C64", 64},
    {StoredType::f64, "F64", 64},
    {StoredType::i64, "I64", 64},
    {StoredType::u64, "U64", 64},
}};
const TypeFacts& facts_of(StoredType type) { return types[static_cast<std::size_t>(type)]; }

struct Half {
  std::uint16_t bits = 0;
  operator float() const { return half_to_float(bits); }
};

template <class T>
T load(const std::byte* at) {
  T value;
  std::memcpy(&value, at, sizeof(T));
  return value;
}

template <class To>
To narrow(double x) {
  if constexpr (std::is_same_v<To, bfloat16>) {
    return split_float(round_to_odd(x)).weight;
  } else if constexpr (std::is_same_v<To, Half>) {
    return Half{float_to_half(round_to_odd(x))};
  } else {
    return static_cast<To>(x);
  }
}

template <class From, class To>
void convert_floats(const std::byte* in, void* out, std::int64_t count) {
  using Value = std::conditional_t<std::is_same_v<From, double>, double, float>;
  auto* const to = static_cast<To*>(out);
  for (std::int64_t i = 0; i < count; ++i) {
    const Value value = load<From>(in + static_cast<std::size_t>(i) * sizeof(From));
    if constexpr (std::is_same_v<Value, double>) {
      to[i] = narrow<To>(value);
    } else if constexpr (std::is_same_v<To, bfloat16>) {
      to[i] = split_float(value).weight;
    } else {
      to[i] = static_cast<To>(value);
    }
  }
}

template <class From>
void convert_float_to(DType to, const std::byte* in, void* out, std::int64_t count) {
  switch (to) {
    case DType::f32:
      return convert_floats<From, float>(in, out, count);
    case DType::f64:
      return convert_floats<From, double>(in, out, count);
    case DType::bf16:
      return convert_floats<From, bfloat16>(in, out, count);
    default:
      WEFT_CHECK(false, "floats read as {}", name_of(to));
  }
}

template <class From, class To>
bool convert_integers(const std::byte* in, void* out, std::int64_t count) {
  auto* const to = static_cast<To*>(out);
  for (std::int64_t i = 0; i < count; ++i) {
    const From value = load<From>(in + static_cast<std::size_t>(i) * sizeof(From));
    if (!std::in_range<To>(value)) return false;
    to[i] = static_cast<To>(value);
  }
  return true;
}

template <class From>
bool convert_integer_to(DType to, const std::byte* in, void* out, std::int64_t count) {
  switch (to) {
    case DType::i16:
      return convert_integers<From, std::int16_t>(in, out, count);
    case DType::i32:
      return convert_integers<From, std::int32_t>(in, out, count);
    case DType::i64:
      return convert_integers<From, std::int64_t>(in, out, count);
    case DType::u8:
      return convert_integers<From, std::uint8_t>(in, out, count);
    default:
      WEFT_CHECK(false, "integers read as {}", name_of(to));
  }
}

template <class From, class To>
void store_as(const std::byte* in, std::byte* out, std::int64_t count) {
  for (std::int64_t i = 0; i < count; ++i) {
    const auto at = static_cast<std::size_t>(i);
    const To value = narrow<To>(static_cast<double>(load<From>(in + at * sizeof(From))));
    std::memcpy(out + at * sizeof(To), &value, sizeof(To));
  }
}

template <class From>
void store_from(const std::byte* in, StoredType to, std::byte* out, std::int64_t count) {
  switch (to) {
    case StoredType::f64:
      return store_as<From, double>(in, out, count);
    case StoredType::f32:
      return store_as<From, float>(in, out, count);
    case StoredType::bf16:
      return store_as<From, bfloat16>(in, out, count);
    case StoredType::f16:
      return store_as<From, Half>(in, out, count);
    default:
      WEFT_CHECK(false, "numbers stored as {}", name_of(to));
  }
}

// A number is not finite where all bits of its exponent are set: then adding the lowest of them carries into the sign's
// place. One loop without an exit, which the compiler vectorises.
template <class Bits>
bool finite_bits(const std::byte* in, std::int64_t count, Bits exponent) {
  const Bits sign = static_cast<Bits>(Bits{1} << (8 * sizeof(Bits) - 1));
  const Bits lowest = static_cast<Bits>(sign - exponent);
  Bits carried = 0;
  for (std::int64_t i = 0; i < count; ++i)
    carried |= static_cast<Bits>((load<Bits>(in + static_cast<std::size_t>(i) * sizeof(Bits)) & exponent) + lowest);
  return (carried & sign) == 0;
}

}  // namespace

std::string_view name_of(StoredType type) { return facts_of(type).name; }
int bits_of(StoredType type) { return facts_of(type).bits; }

std::optional<StoredType> stored_type_of(std::string_view name) {
  for (const TypeFacts& facts : types) {
    if (facts.name == name) return facts.type;
  }
  return std::nullopt;
}

StoredType stored_type_of(DType dtype) {
  switch (dtype) {
    case DType::f32:
      return StoredType::f32;
    case DType::f64:
      return StoredType::f64;
    case DType::bf16:
      return StoredType::bf16;
    case DType::i16:
      return StoredType::i16;
    case DType::i32:
      return StoredType::i32;
    case DType::i64:
      return StoredType::i64;
    case DType::u8:
      return StoredType::u8;
  }
  WEFT_CHECK(false, "dtype {}", static_cast<int>(dtype));
}

bool is_float(StoredType type) {
  return type == StoredType::f64 || type == StoredType::f32 || type == StoredType::f16 || type == StoredType::bf16;
}
bool is_integer(StoredType type) {
  return type == StoredType::u8 || type == StoredType::i8 || type == StoredType::i16 || type == StoredType::u16 ||
         type == StoredType::i32 || type == StoredType::u32 || type == StoredType::i64 || type == StoredType::u64;
}
bool is_float(DType dtype) { return dtype == DType::f32 || dtype == DType::f64 || dtype == DType::bf16; }

bool is_convertible(StoredType from, DType to) { return is_float(to) ? is_float(from) : is_integer(from); }

bool convert(StoredType from, const std::byte* in, DType to, void* out, std::int64_t count) {
  WEFT_CHECK(is_convertible(from, to), "{} read as {}", name_of(from), name_of(to));
  if (from == stored_type_of(to)) {
    if (count > 0) std::memcpy(out, in, static_cast<std::size_t>(count) * size_of(to));
    return true;
  }
  switch (from) {
    case StoredType::f64:
      return convert_float_to<double>(to, in, out, count), true;
    case StoredType::f32:
      return convert_float_to<float>(to, in, out, count), true;
    case StoredType::bf16:
      return convert_float_to<bfloat16>(to, in, out, count), true;
    case StoredType::f16:
      return convert_float_to<Half>(to, in, out, count), true;
    case StoredType::u8:
      return convert_integer_to<std::uint8_t>(to, in, out, count);
    case StoredType::i8:
      return convert_integer_to<std::int8_t>(to, in, out, count);
    case StoredType::u16:
      return convert_integer_to<std::uint16_t>(to, in, out, count);
    case StoredType::i16:
      return convert_integer_to<std::int16_t>(to, in, out, count);
    case StoredType::u32:
      return convert_integer_to<std::uint32_t>(to, in, out, count);
    case StoredType::i32:
      return convert_integer_to<std::int32_t>(to, in, out, count);
    case StoredType::u64:
      return convert_integer_to<std::uint64_t>(to, in, out, count);
    case StoredType::i64:
      return convert_integer_to<std::int64_t>(to, in, out, count);
    default:
      WEFT_CHECK(false, "{} read as {}", name_of(from), name_of(to));
  }
}

void store(DType from, const std::byte* in, StoredType to, std::byte* out, std::int64_t count) {
  if (to == stored_type_of(from)) {
    if (count > 0) std::memcpy(out, in, static_cast<std::size_t>(count) * size_of(from));
    return;
  }
  switch (from) {
    case DType::f64:
      return store_from<double>(in, to, out, count);
    case DType::f32:
      return store_from<float>(in, to, out, count);
    case DType::bf16:
      return store_from<bfloat16>(in, to, out, count);
    default:
      WEFT_CHECK(false, "{} stored as {}", name_of(from), name_of(to));
  }
}

void store_doubles(const double* in, StoredType to, std::byte* out, std::int64_t count) {
  store(DType::f64, reinterpret_cast<const std::byte*>(in), to, out, count);
}

bool all_finite(StoredType type, const std::byte* numbers, std::int64_t count) {
  switch (type) {
    case StoredType::f64:
      return finite_bits<std::uint64_t>(numbers, count, 0x7ff0'0000'0000'0000u);
    case StoredType::f32:
      return finite_bits<std::uint32_t>(numbers, count, 0x7f80'0000u);
    case StoredType::bf16:
      return finite_bits<std::uint16_t>(numbers, count, 0x7f80u);
    case StoredType::f16:
      return finite_bits<std::uint16_t>(numbers, count, 0x7c00u);
    default:
      WEFT_CHECK(false, "finite numbers of {}", name_of(type));
  }
}

float half_to_float(std::uint16_t bits) {
  const std::uint32_t sign = static_cast<std::uint32_t>(bits & 0x8000u) << 16;
  const std::uint32_t exponent = (bits >> 10) & 0x1fu, fraction = bits & 0x3ffu;
  if (exponent == 0) {  // zero or subnormal: fraction * 2^-24, exact in float
    const float magnitude = static_cast<float>(fraction) * 0x1p-24f;
    return sign != 0 ? -magnitude : magnitude;
  }
  const std::uint32_t wide = exponent == 31 ? 0xffu : exponent + 127 - 15;
  return std::bit_cast<float>(sign | (wide << 23) | (fraction << 13));
}

std::uint16_t float_to_half(float x) {
  const auto u = std::bit_cast<std::uint32_t>(x);
  const auto sign = static_cast<std::uint16_t>((u >> 16) & 0x8000u);
  const std::uint32_t magnitude = u & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return static_cast<std::uint16_t>(sign | 0x7e00u | ((u >> 13) & 0x3ffu));
  if (magnitude < 0x38800000u) {  // below 2^-14: a multiple of 2^-24
    const float units = std::nearbyint(std::bit_cast<float>(magnitude) * 0x1p24f);
    return static_cast<std::uint16_t>(sign | static_cast<std::uint16_t>(units));
  }
  if (magnitude >= 0x477ff000u) return static_cast<std::uint16_t>(sign | 0x7c00u);  // 65520 rounds to infinity
  const std::uint32_t rounded = magnitude + 0xfffu + ((magnitude >> 13) & 1u);
  return static_cast<std::uint16_t>(sign | ((rounded - 0x38000000u) >> 13));
}

float round_to_odd(double x) {
  const auto nearest = static_cast<float>(x);
  if (static_cast<double>(nearest) == x || std::isnan(x)) return nearest;
  auto bits = std::bit_cast<std::uint32_t>(nearest);
  // Back to the float towards zero if rounding went away from it. Of neighbours, one is odd.
  if (std::abs(static_cast<double>(nearest)) > std::abs(x)) --bits;
  return std::bit_cast<float>(bits | 1u);
}

}  // namespace weft
