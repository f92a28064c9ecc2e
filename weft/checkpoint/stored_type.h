// The element types of safetensors files, and the conversion between them and ours.
//
// Conversions are exact where the target can hold the value, and round once where it cannot, to nearest even, to bf16 as
// the weights of a model are rounded (split_float); so what a file holds never depends on the way it took, and a trained
// model in a bf16 file has the weights it computed with. Infinities stay, NaN stays NaN.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

#include "weft/base/dtype.h"

namespace weft {

// In the order in which the reference writer sorts tensors, last first: the wider types come first, so that every
// tensor is aligned to its own elements.
enum class StoredType : std::uint8_t {
  boolean,
  f4,
  f6_e2m3,
  f6_e3m2,
  u8,
  i8,
  f8_e5m2,
  f8_e4m3,
  f8_e8m0,
  f8_e4m3fnuz,
  f8_e5m2fnuz,
  i16,
  u16,
  f16,
  bf16,
  i32,
  u32,
  f32,
  c64,
  f64,
  i64,
  u64,
};

std::string_view name_of(StoredType type);  // as in the file: "BF16"
std::optional<StoredType> stored_type_of(std::string_view name);
int bits_of(StoredType type);
StoredType stored_type_of(DType dtype);

// F64, F32, F16, BF16: what weights are kept in.
bool is_float(StoredType type);
bool is_integer(StoredType type);
bool is_float(DType dtype);

// Whether `convert` can read `from` as `to`: floats as floats, integers as integers.
bool is_convertible(StoredType from, DType to);
// Reads `count` elements that need not be aligned. False: an integer does not fit the target.
[[nodiscard]] bool convert(StoredType from, const std::byte* in, DType to, void* out, std::int64_t count);
// Writes `count` numbers of one of our float types as one of the four above: bit for bit where it is the same type.
void store(DType from, const std::byte* in, StoredType to, std::byte* out, std::int64_t count);
void store_doubles(const double* in, StoredType to, std::byte* out, std::int64_t count);

// Whether none of `count` numbers of one of the four float types is an infinity or NaN.
bool all_finite(StoredType type, const std::byte* numbers, std::int64_t count);

// IEEE binary16.
float half_to_float(std::uint16_t bits);
std::uint16_t float_to_half(float x);
// The float next to x with an odd last bit unless x is a float: rounding it again, to 22 bits or fewer, gives what
// rounding x at once would have given.
float round_to_odd(double x);

}  // namespace weft
