// add, cast, fill.
#include "weft/device/operations/elementwise.h"

#include <initializer_list>

#include "weft/device/argument_checks.h"
#include "weft/device/cpu/kernels/dispatch.h"

namespace weft::WEFT_ISA {

namespace {

// Runs body(row, begin, end) over all elements: one long row where every tensor is contiguous, else row by row.
template <class Body>
void for_each_run(Stream& stream, std::initializer_list<const Tensor*> tensors, const Body& body) {
  const Tensor& first = **tensors.begin();
  bool flat = true;
  for (const Tensor* tensor : tensors) flat = flat && contiguous(*tensor);
  if (flat)
    return split_elements(stream, first.shape.elements(),
                          [&](std::int64_t begin, std::int64_t end) { body(std::int64_t{0}, begin, end); });
  const std::int64_t columns = columns_of(first);
  split_rows(stream, first.rows(), columns, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t r = begin; r < end; ++r) body(r, std::int64_t{0}, columns);
  });
}

template <class A, class B, class Y>
void add_typed(Stream& stream, const Add& op) {
  for_each_run(stream, {&op.y, &op.a, &op.b}, [&](std::int64_t r, std::int64_t begin, std::int64_t end) {
    const A* a = row<A>(op.a, r);
    const B* b = row<B>(op.b, r);
    Y* y = row<Y>(op.y, r);
#pragma omp simd
    for (std::int64_t i = begin; i < end; ++i) y[i] = narrow<Y>(widen(a[i]) + widen(b[i]));
  });
}

// f32 and bf16 go together in any way; f64 only with itself.
template <class Body>
void with_single(const char* operation, DType dtype, const Body& body) {
  switch (dtype) {
    case DType::f32:
      return body(Type<float>{});
    case DType::bf16:
      return body(Type<bfloat16>{});
    default:
      refuse(operation, "its tensors' dtypes do not go together");
  }
}

// From any number to any other: through float or double, or as it is between integers.
template <class X, class Y>
WEFT_INLINE Y converted(X x) {
  if constexpr (std::is_integral_v<X> && std::is_integral_v<Y>)
    return static_cast<Y>(x);
  else if constexpr (std::is_integral_v<X>)
    return narrow<Y>(static_cast<double>(x));
  else if constexpr (std::is_integral_v<Y>)
    return static_cast<Y>(widen(x));
  else
    return narrow<Y>(widen(x));
}

template <class X, class Y>
void cast_typed(Stream& stream, const Cast& op) {
  for_each_run(stream, {&op.y, &op.x}, [&](std::int64_t r, std::int64_t begin, std::int64_t end) {
    const X* x = row<X>(op.x, r);
    Y* y = row<Y>(op.y, r);
#pragma omp simd
    for (std::int64_t i = begin; i < end; ++i) y[i] = converted<X, Y>(x[i]);
  });
}

template <class Body>
void with_number(const char* operation, DType dtype, const Body& body) {
  switch (dtype) {
    case DType::i16:
      return body(Type<std::int16_t>{});
    case DType::i32:
      return body(Type<std::int32_t>{});
    case DType::i64:
      return body(Type<std::int64_t>{});
    case DType::u8:
      return body(Type<std::uint8_t>{});
    default:
      return with_storage(operation, dtype, body);
  }
}

}  // namespace

void add(Stream& stream, const Add& op) {
  check_arguments("add", op);
  if (op.y.dtype == DType::f64) {
    require(op.a.dtype == DType::f64 && op.b.dtype == DType::f64, "add", "its tensors' dtypes do not go together");
    return add_typed<double, double, double>(stream, op);
  }
  with_single("add", op.a.dtype, [&](auto a) {
    with_single("add", op.b.dtype, [&](auto b) {
      with_single("add", op.y.dtype, [&](auto y) {
        add_typed<typename decltype(a)::type, typename decltype(b)::type, typename decltype(y)::type>(stream, op);
      });
    });
  });
}

void cast(Stream& stream, const Cast& op) {
  check_arguments("cast", op);
  with_number("cast", op.x.dtype, [&](auto x) {
    with_number("cast", op.y.dtype,
                [&](auto y) { cast_typed<typename decltype(x)::type, typename decltype(y)::type>(stream, op); });
  });
}

void fill(Stream& stream, const Fill& op) {
  with_number("fill", op.y.dtype, [&](auto type) {
    using T = typename decltype(type)::type;
    const T value = converted<double, T>(op.value);
    for_each_run(stream, {&op.y}, [&](std::int64_t r, std::int64_t begin, std::int64_t end) {
      T* y = row<T>(op.y, r);
      if constexpr (dtype_of<T>() == DType::bf16) {  // the compiler does not vectorise copies of the struct
#pragma omp simd
        for (std::int64_t i = begin; i < end; ++i) y[i].bits = value.bits;
      } else {
#pragma omp simd
        for (std::int64_t i = begin; i < end; ++i) y[i] = value;
      }
    });
  });
}

}  // namespace weft::WEFT_ISA
