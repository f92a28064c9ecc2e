// add, cast, fill.
#include "weft/device/argument_checks.h"
#include "weft/device/cuda/kernels/launch.cuh"
#include "weft/device/cuda/table.h"
#include "weft/device/operations/elementwise.h"

namespace weft::cuda {

namespace {

template <int V, class A, class B, class Y>
struct AddPacks {
  Rows<const A> a;
  Rows<const B> b;
  Rows<Y> y;
  __device__ void operator()(std::int64_t r, std::int64_t u) const {
    float p[V], q[V];
    load<V>(a[r] + u * V, p);
    load<V>(b[r] + u * V, q);
#pragma unroll
    for (int i = 0; i < V; ++i) p[i] += q[i];
    store<V>(y[r] + u * V, p);
  }
};

template <int V, class X, class Y>
struct CastPacks {
  Rows<const X> x;
  Rows<Y> y;
  __device__ void operator()(std::int64_t r, std::int64_t u) const {
    float p[V];
    load<V>(x[r] + u * V, p);
    store<V>(y[r] + u * V, p);
  }
};

// Numbers that are not both f32 or bf16 go one by one.
template <class T>
__device__ double number(T x) {
  return static_cast<double>(x);
}
template <>
__device__ double number<bf16>(bf16 x) {
  return static_cast<double>(__bfloat162float(x));
}
template <class T>
__device__ T from_number(double x) {
  return static_cast<T>(x);
}
template <>
__device__ bf16 from_number<bf16>(double x) {
  return __double2bfloat16(x);
}

template <class X, class Y>
struct CastNumbers {
  Rows<const X> x;
  Rows<Y> y;
  __device__ void operator()(std::int64_t r, std::int64_t u) const { y[r][u] = from_number<Y>(number(x[r][u])); }
};

template <class T>
struct FillNumbers {
  Rows<T> y;
  double value;
  __device__ void operator()(std::int64_t r, std::int64_t u) const { y[r][u] = from_number<T>(value); }
};

template <class Body>
void with_number(const char* operation, DType dtype, const Body& body) {
  switch (dtype) {
    case DType::f32:
      return body(Type<float>{});
    case DType::bf16:
      return body(Type<bf16>{});
    case DType::f64:
      return body(Type<double>{});
    case DType::i16:
      return body(Type<std::int16_t>{});
    case DType::i32:
      return body(Type<std::int32_t>{});
    default:
      refuse(operation, "needs f32, bf16, f64, i16 or i32 on a GPU");
  }
}

bool is_model_type(DType dtype) { return dtype == DType::f32 || dtype == DType::bf16; }

}  // namespace

void add(Stream& stream, const Add& op) {
  check_arguments("add", op);
  const Extent e = extent_of({&op.y, &op.a, &op.b});
  with_storage("add", op.a.dtype, [&](auto a) {
    with_storage("add", op.b.dtype, [&](auto b) {
      with_storage("add", op.y.dtype, [&](auto y) {
        using A = typename decltype(a)::type;
        using B = typename decltype(b)::type;
        using Y = typename decltype(y)::type;
        with_pack(e.columns, {&op.a, &op.b, &op.y}, [&](auto v) {
          constexpr int V = decltype(v)::value;
          launch_over_rows("add", cuda_stream(stream),
                           AddPacks<V, A, B, Y>{rows_of<const A>(op.a), rows_of<const B>(op.b), rows_of<Y>(op.y)},
                           e.rows, e.columns / V);
        });
      });
    });
  });
}

void cast(Stream& stream, const Cast& op) {
  check_arguments("cast", op);
  const Extent e = extent_of({&op.y, &op.x});
  if (is_model_type(op.x.dtype) && is_model_type(op.y.dtype)) {
    with_storage("cast", op.x.dtype, [&](auto x) {
      with_storage("cast", op.y.dtype, [&](auto y) {
        using X = typename decltype(x)::type;
        using Y = typename decltype(y)::type;
        with_pack(e.columns, {&op.x, &op.y}, [&](auto v) {
          constexpr int V = decltype(v)::value;
          launch_over_rows("cast", cuda_stream(stream), CastPacks<V, X, Y>{rows_of<const X>(op.x), rows_of<Y>(op.y)},
                           e.rows, e.columns / V);
        });
      });
    });
    return;
  }
  with_number("cast", op.x.dtype, [&](auto x) {
    with_number("cast", op.y.dtype, [&](auto y) {
      using X = typename decltype(x)::type;
      using Y = typename decltype(y)::type;
      launch_over_rows("cast", cuda_stream(stream), CastNumbers<X, Y>{rows_of<const X>(op.x), rows_of<Y>(op.y)}, e.rows,
                       e.columns);
    });
  });
}

void fill(Stream& stream, const Fill& op) {
  if (op.y.shape.elements() == 0) return;
  const Extent e = extent_of({&op.y});
  if (op.value == 0 && e.rows == 1) {
    check_cuda(cudaMemsetAsync(op.y.data, 0, op.y.bytes(), cuda_stream(stream).handle()), "fill");
    return;
  }
  with_number("fill", op.y.dtype, [&](auto y) {
    using Y = typename decltype(y)::type;
    launch_over_rows("fill", cuda_stream(stream), FillNumbers<Y>{rows_of<Y>(op.y), op.value}, e.rows, e.columns);
  });
}

const void* any_kernel() { return reinterpret_cast<const void*>(&over_rows<FillNumbers<float>>); }

}  // namespace weft::cuda
