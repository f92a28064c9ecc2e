// From an operation's arguments to a typed loop: which types, which rows, which thread.
#pragma once

#include <algorithm>
#include <functional>

#include "weft/device/cpu/kernels/load.h"
#include "weft/device/cpu/scratch.h"
#include "weft/device/cpu/stream.h"
#include "weft/device/refuse.h"

namespace weft::WEFT_ISA {

inline void require(bool condition, const char* operation, const char* why) {
  if (!condition) refuse(operation, why);
}

// A type as a value: body(Type<T>{}) and `typename decltype(t)::type` inside.
template <class T>
struct Type {
  using type = T;
};

// body(T) for the storage types f32, f64, bf16.
template <class Body>
void with_storage(const char* operation, DType dtype, const Body& body) {
  switch (dtype) {
    case DType::f32:
      return body(Type<float>{});
    case DType::f64:
      return body(Type<double>{});
    case DType::bf16:
      return body(Type<bfloat16>{});
    default:
      refuse(operation, "needs f32, f64 or bf16");
  }
}

// body(Acc) for the types that sums are kept in.
template <class Body>
void with_accumulator(const char* operation, DType dtype, const Body& body) {
  switch (dtype) {
    case DType::f32:
      return body(Type<float>{});
    case DType::f64:
      return body(Type<double>{});
    default:
      refuse(operation, "needs f32 or f64");
  }
}

// body(T, U) where `second` is stored like `first` or in first's accumulator: weights and gradients next to activations.
template <class Body>
void with_storage_and(const char* operation, DType first, DType second, const Body& body) {
  with_storage(operation, first, [&](auto type) {
    using T = typename decltype(type)::type;
    if (second == first) return body(type, type);
    if (second != dtype_of<Accumulator<T>>()) refuse(operation, "its tensors' dtypes do not go together");
    if constexpr (dtype_of<T>() != dtype_of<Accumulator<T>>()) body(type, Type<Accumulator<T>>{});
  });
}

// The first of an optional tensor's elements, or null.
template <class T>
T* optional(const Tensor& tensor) {
  return tensor.given() ? static_cast<T*>(tensor.data) : nullptr;
}

// One number in f32 or f64.
inline double read_scalar(const char* operation, const Tensor& tensor) {
  if (tensor.dtype == DType::f64) return *static_cast<const double*>(tensor.data);
  if (tensor.dtype != DType::f32) refuse(operation, "needs its scalars in f32 or f64");
  return static_cast<double>(*static_cast<const float*>(tensor.data));
}

// How many rows an operation handles: all, or the number in device memory.
inline std::int64_t used_rows(const char* operation, const Tensor& rows_in_use, std::int64_t rows) {
  if (!rows_in_use.given()) return rows;
  require(rows_in_use.dtype == DType::i32, operation, "rows_in_use is not i32");
  const std::int64_t used = *static_cast<const std::int32_t*>(rows_in_use.data);
  require(used >= 0 && used <= rows, operation, "rows_in_use exceeds the rows there are");
  return used;
}

// A piece of work below this many elements is not worth a second thread.
constexpr std::int64_t elements_per_thread = 16384;
// Ranges of elements begin at multiples of this, so that an element meets the same instructions (a vector or the
// remainder) however the work is cut.
constexpr std::int64_t range_unit = 128;

// One copy of the code of a loop, whoever runs it: two copies may be compiled to differ in the last bit.
template <class Work>
[[gnu::noinline]] void run_range(const Work& work, std::int64_t begin, std::int64_t end) {
  work(begin, end);
}

// Cuts [0, count) into at most one range per thread, of at least `grain`, and runs work(begin, end) on each.
// (Team::ranges would allocate: a std::function of these captures does not fit inside.)
template <class Work>
void split(Stream& stream, std::int64_t count, std::int64_t grain, const Work& work) {
  if (count <= 0) return;
  Team& team = team_of(stream);
  const std::int64_t parts = std::clamp<std::int64_t>(count / std::max<std::int64_t>(grain, 1), 1, team.size());
  if (parts == 1) return run_range(work, 0, count);
  const auto member_work = [&](int member) {
    if (member >= parts) return;
    const std::int64_t begin = count * member / parts, end = count * (member + 1) / parts;
    if (begin < end) run_range(work, begin, end);
  };
  team.run(std::cref(member_work));
}

// Rows, each of `columns` elements of work.
template <class Work>
void split_rows(Stream& stream, std::int64_t rows, std::int64_t columns, const Work& work) {
  split(stream, rows, elements_per_thread / std::max<std::int64_t>(columns, 1) + 1, work);
}

// Elements, in ranges that begin at multiples of range_unit.
template <class Work>
void split_elements(Stream& stream, std::int64_t count, const Work& work) {
  const std::int64_t units = (count + range_unit - 1) / range_unit;
  split(stream, units, elements_per_thread / range_unit,
        [&](std::int64_t begin, std::int64_t end) { work(begin * range_unit, std::min(end * range_unit, count)); });
}

}  // namespace weft::WEFT_ISA
