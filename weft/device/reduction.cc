#include "weft/device/reduction.h"

#include <algorithm>
#include <type_traits>

#include "weft/base/error.h"

namespace weft {

namespace {

// Sums of whole numbers are kept unsigned: they wrap instead of being undefined.
template <class T>
struct TotalOf {
  using type = std::make_unsigned_t<T>;
};
template <>
struct TotalOf<float> {
  using type = float;
};
template <>
struct TotalOf<double> {
  using type = double;
};
template <>
struct TotalOf<bfloat16> {
  using type = float;
};

struct TakeSum {
  template <class T>
  using Total = typename TotalOf<T>::type;
  template <class A>
  static A apply(A a, A b) {
    return static_cast<A>(a + b);
  }
};

struct TakeMax {
  template <class T>
  using Total = std::conditional_t<std::is_same_v<T, bfloat16>, float, T>;
  template <class A>
  static A apply(A a, A b) {
    return b > a || b != b ? b : a;  // NaN wins
  }
};

template <class T, class Combine>
void reduce_typed(std::byte* out, std::span<const std::byte* const> inputs, std::int64_t count) {
  using Total = typename Combine::template Total<T>;
  constexpr std::int64_t block = 1024;  // totals stay in the first-level cache
  Total totals[block];
  T* to = reinterpret_cast<T*>(out);
  for (std::int64_t at = 0; at < count; at += block) {
    const std::int64_t n = std::min(block, count - at);
    const T* first = reinterpret_cast<const T*>(inputs[0]) + at;
    for (std::int64_t i = 0; i < n; ++i) totals[i] = static_cast<Total>(first[i]);
    for (const std::byte* input : inputs.subspan(1)) {
      const T* next = reinterpret_cast<const T*>(input) + at;
      for (std::int64_t i = 0; i < n; ++i) totals[i] = Combine::apply(totals[i], static_cast<Total>(next[i]));
    }
    for (std::int64_t i = 0; i < n; ++i) to[at + i] = static_cast<T>(totals[i]);
  }
}

template <class Combine>
void reduce_by(DType dtype, std::byte* out, std::span<const std::byte* const> inputs, std::int64_t count) {
  switch (dtype) {
    case DType::f32:
      return reduce_typed<float, Combine>(out, inputs, count);
    case DType::f64:
      return reduce_typed<double, Combine>(out, inputs, count);
    case DType::bf16:
      return reduce_typed<bfloat16, Combine>(out, inputs, count);
    case DType::i16:
      return reduce_typed<std::int16_t, Combine>(out, inputs, count);
    case DType::i32:
      return reduce_typed<std::int32_t, Combine>(out, inputs, count);
    case DType::i64:
      return reduce_typed<std::int64_t, Combine>(out, inputs, count);
    case DType::u8:
      return reduce_typed<std::uint8_t, Combine>(out, inputs, count);
  }
  WEFT_CHECK(false, "reduction of dtype {}", name_of(dtype));
}

}  // namespace

std::string_view name_of(Reduction reduction) { return reduction == Reduction::sum ? "sum" : "max"; }

void reduce_in_rank_order(Reduction reduction, DType dtype, std::byte* out, std::span<const std::byte* const> inputs,
                          std::int64_t count) {
  if (reduction == Reduction::sum)
    reduce_by<TakeSum>(dtype, out, inputs, count);
  else
    reduce_by<TakeMax>(dtype, out, inputs, count);
}

}  // namespace weft
