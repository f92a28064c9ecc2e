// RMS norm with a gate, before or after it, and L2 norm of the parts of a row.
#include <cmath>

#include "weft/device/argument_checks.h"
#include "weft/device/cpu/kernels/activation_kinds.h"
#include "weft/device/cpu/kernels/column_sums.h"
#include "weft/device/cpu/kernels/lane_sum.h"
#include "weft/device/operations/recurrent.h"

namespace weft::WEFT_ISA {

namespace {

struct Parts {
  std::int64_t count, width, weight_step;  // weight_step: 0 where the parts share their weights
};
Parts parts_of(const GatedNorm& op, const Tensor& weight) {
  const std::int64_t columns = columns_of(op.x);
  const std::int64_t width = columns / op.groups, weights = weight.shape.elements();
  if (op.x.rows() == 0) return {op.groups, width, 0};
  return {op.groups, width, weights == width ? 0 : width};
}

std::int64_t whole_width(const GatedNorm& op, std::int64_t width) { return op.whole > 0 ? op.whole : width; }

template <bool gate_first, class Acc, class T>
Acc squares_of(const T* x, const T* z, std::int64_t width) {
  return lane_sum<Acc>(
      width, [=](std::int64_t j) __attribute__((always_inline)) {
        Acc u = widen(x[j]);
        if constexpr (gate_first) u *= widen(z[j]) * gate_of(widen(z[j]));
        return u * u;
      });
}

template <class Acc, class T, class W>
Acc products_of(const T* x, const T* z, const T* dy, const W* weight, std::int64_t width) {
  return lane_sum<Acc>(
      width, [=](std::int64_t j) __attribute__((always_inline)) {
        return widen(dy[j]) * widen_to<Acc>(weight[j]) * widen(x[j]) * (widen(z[j]) * gate_of(widen(z[j])));
      });
}

template <bool gate_first, class T, class W>
void forward(Stream& stream, const GatedNorm& op) {
  using Acc = Accumulator<T>;
  const Parts parts = parts_of(op, op.weight);
  const std::int64_t width = parts.width;
  split_rows(stream, op.x.rows(), 4 * columns_of(op.x), [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t r = begin; r < end; ++r)
      for (std::int64_t part = 0; part < parts.count; ++part) {
        const T* x = row<T>(op.x, r) + part * width;
        const T* z = row<T>(op.z, r) + part * width;
        const W* weight = static_cast<const W*>(op.weight.data) + part * parts.weight_step;
        T* y = row<T>(op.y, r) + part * width;
        const Acc sum = op.squares.given() ? row<Acc>(op.squares, r)[part] : squares_of<gate_first, Acc>(x, z, width);
        const Acc inverse =
            Acc{1} / std::sqrt(sum / static_cast<Acc>(whole_width(op, width)) + static_cast<Acc>(op.eps));
        static_cast<Acc*>(op.inverse.data)[r * parts.count + part] = inverse;
#pragma omp simd
        for (std::int64_t j = 0; j < width; ++j) {
          const Acc gate = widen(z[j]) * gate_of(widen(z[j]));
          y[j] = narrow<T>(widen(x[j]) * gate * inverse * widen_to<Acc>(weight[j]));
        }
      }
  });
}

// gate_first: with u = x silu(z), v = dy weight:  du = inverse v - u inverse^3 mean(v u);  dx = du silu(z),
// dz = du x silu'(z). Otherwise with v = dy weight silu(z) the same for x, and dz = dy weight x inverse silu'(z).
template <bool gate_first, class T, class W>
void input_gradients(Stream& stream, const GatedNormBackward& op) {
  using Acc = Accumulator<T>;
  const GatedNorm& f = op.forward;
  const Parts parts = parts_of(f, f.weight);
  const std::int64_t width = parts.width;
  split_rows(stream, f.x.rows(), 8 * columns_of(f.x), [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t r = begin; r < end; ++r)
      for (std::int64_t part = 0; part < parts.count; ++part) {
        const T* x = row<T>(f.x, r) + part * width;
        const T* z = row<T>(f.z, r) + part * width;
        const T* dy = row<T>(op.dy, r) + part * width;
        const W* weight = static_cast<const W*>(f.weight.data) + part * parts.weight_step;
        T* dx = row<T>(op.dx, r) + part * width;
        T* dz = row<T>(op.dz, r) + part * width;
        const Acc inverse = static_cast<const Acc*>(f.inverse.data)[r * parts.count + part];
        const Acc dot =
            op.products.given() ? row<Acc>(op.products, r)[part] : products_of<Acc>(x, z, dy, weight, width);
        const Acc along = inverse * inverse * inverse * dot / static_cast<Acc>(whole_width(f, width));
#pragma omp simd
        for (std::int64_t j = 0; j < width; ++j) {
          const Acc a = widen(x[j]), b = widen(z[j]), s = gate_of(b), gate = b * s;
          const Acc slope = s + gate * (Acc{1} - s), v = widen(dy[j]) * widen_to<Acc>(weight[j]);
          if constexpr (gate_first) {
            const Acc du = inverse * v - a * gate * along;
            dx[j] = narrow<T>(du * gate);
            dz[j] = narrow<T>(du * a * slope);
          } else {
            dx[j] = narrow<T>(inverse * v * gate - a * along);
            dz[j] = narrow<T>(v * a * inverse * slope);
          }
        }
      }
  });
}

// Where the parts share their weights, a part is a row of the sum. Both kinds: dy x silu(z) inverse.
template <class T, class G>
void weight_gradient(Stream& stream, const GatedNormBackward& op) {
  using Acc = Accumulator<T>;
  const GatedNorm& f = op.forward;
  const Parts parts = parts_of(f, op.dweight);
  const bool shared = parts.weight_step == 0;
  const std::int64_t width = parts.width;
  const std::int64_t rows = f.x.rows() * (shared ? parts.count : 1);
  const Acc* inverses = static_cast<const Acc*>(f.inverse.data);
  const auto add_rows = [&](Acc* sums, std::int64_t first, std::int64_t last, std::int64_t c0, std::int64_t c1) {
    for (std::int64_t r = first; r < last; ++r) {
      const std::int64_t token = shared ? r / parts.count : r, offset = shared ? r % parts.count * width : 0;
      const T* x = row<T>(f.x, token) + offset;
      const T* z = row<T>(f.z, token) + offset;
      const T* dy = row<T>(op.dy, token) + offset;
      for (std::int64_t part = c0 / width; part * width < c1; ++part) {
        const Acc inverse = inverses[shared ? r : r * parts.count + part];
        const std::int64_t from = std::max(c0, part * width), to = std::min(c1, (part + 1) * width);
#pragma omp simd
        for (std::int64_t c = from; c < to; ++c)
          sums[c - c0] += widen(dy[c]) * widen(x[c]) * (widen(z[c]) * gate_of(widen(z[c]))) * inverse;
      }
    }
  };
  column_sums<Acc>(stream, rows, op.dweight.shape.elements(), op.dweight.as<G>(), op.store, add_rows);
}

template <class T, class W>
void part_sums(Stream& stream, const GatedNormSums& op) {
  using Acc = Accumulator<T>;
  const GatedNorm& f = op.forward;
  const Parts parts = parts_of(f, f.weight);
  split_rows(stream, f.x.rows(), 4 * columns_of(f.x), [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t r = begin; r < end; ++r)
      for (std::int64_t part = 0; part < parts.count; ++part) {
        const T* x = row<T>(f.x, r) + part * parts.width;
        const T* z = row<T>(f.z, r) + part * parts.width;
        const W* weight = static_cast<const W*>(f.weight.data) + part * parts.weight_step;
        Acc& sum = row<Acc>(op.sums, r)[part];
        if (op.dy.given())
          sum = products_of<Acc>(x, z, row<T>(op.dy, r) + part * parts.width, weight, parts.width);
        else
          sum = f.gate_first ? squares_of<true, Acc>(x, z, parts.width) : squares_of<false, Acc>(x, z, parts.width);
      }
  });
}

template <class Acc, class T>
Acc l2_inverse(const T* x, std::int64_t width, double eps) {
  const Acc sum = lane_sum<Acc>(
      width, [x](std::int64_t j) __attribute__((always_inline)) { return widen(x[j]) * widen(x[j]); });
  return Acc{1} / std::sqrt(sum + static_cast<Acc>(eps));
}

}  // namespace

void gated_norm(Stream& stream, const GatedNorm& op) {
  constexpr const char* name = "gated_norm";
  check_arguments(name, op);
  with_storage_and(name, op.x.dtype, op.weight.dtype, [&](auto t, auto w) {
    using T = typename decltype(t)::type;
    using W = typename decltype(w)::type;
    op.gate_first ? forward<true, T, W>(stream, op) : forward<false, T, W>(stream, op);
  });
}

void gated_norm_backward(Stream& stream, const GatedNormBackward& op) {
  constexpr const char* name = "gated_norm_backward";
  check_arguments(name, op);
  const GatedNorm& f = op.forward;
  // First: dx or dz may take dy's place.
  with_storage_and(name, op.dy.dtype, op.dweight.dtype, [&](auto t, auto g) {
    weight_gradient<typename decltype(t)::type, typename decltype(g)::type>(stream, op);
  });
  with_storage_and(name, f.x.dtype, f.weight.dtype, [&](auto t, auto w) {
    using T = typename decltype(t)::type;
    using W = typename decltype(w)::type;
    f.gate_first ? input_gradients<true, T, W>(stream, op) : input_gradients<false, T, W>(stream, op);
  });
}

void gated_norm_sums(Stream& stream, const GatedNormSums& op) {
  constexpr const char* name = "gated_norm_sums";
  check_arguments(name, op);
  with_storage_and(name, op.forward.x.dtype, op.forward.weight.dtype, [&](auto t, auto w) {
    part_sums<typename decltype(t)::type, typename decltype(w)::type>(stream, op);
  });
}

void l2_norm(Stream& stream, const L2Norm& op) {
  constexpr const char* name = "l2_norm";
  check_arguments(name, op);
  const std::int64_t width = columns_of(op.x) / op.groups;
  with_storage(name, op.x.dtype, [&](auto type) {
    using T = typename decltype(type)::type;
    using Acc = Accumulator<T>;
    split_rows(stream, op.x.rows(), columns_of(op.x), [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t r = begin; r < end; ++r)
        for (std::int64_t part = 0; part < op.groups; ++part) {
          const T* x = row<T>(op.x, r) + part * width;
          T* y = row<T>(op.y, r) + part * width;
          const Acc factor = l2_inverse<Acc>(x, width, op.eps) * static_cast<Acc>(op.scale);
#pragma omp simd
          for (std::int64_t j = 0; j < width; ++j) y[j] = narrow<T>(widen(x[j]) * factor);
        }
    });
  });
}

// dx = scale inverse (dy - x inverse^2 (x . dy))
void l2_norm_backward(Stream& stream, const L2NormBackward& op) {
  constexpr const char* name = "l2_norm_backward";
  check_arguments(name, op);
  const L2Norm& f = op.forward;
  const std::int64_t width = columns_of(f.x) / f.groups;
  with_storage(name, f.x.dtype, [&](auto type) {
    using T = typename decltype(type)::type;
    using Acc = Accumulator<T>;
    split_rows(stream, f.x.rows(), 2 * columns_of(f.x), [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t r = begin; r < end; ++r)
        for (std::int64_t part = 0; part < f.groups; ++part) {
          const T* x = row<T>(f.x, r) + part * width;
          const T* dy = row<T>(op.dy, r) + part * width;
          T* dx = row<T>(op.dx, r) + part * width;
          const Acc inverse = l2_inverse<Acc>(x, width, f.eps), factor = inverse * static_cast<Acc>(f.scale);
          const Acc dot = lane_sum<Acc>(
              width, [=](std::int64_t j) __attribute__((always_inline)) { return widen(x[j]) * widen(dy[j]); });
          const Acc along = inverse * inverse * dot;
#pragma omp simd
          for (std::int64_t j = 0; j < width; ++j) dx[j] = narrow<T>(factor * (widen(dy[j]) - widen(x[j]) * along));
        }
    });
  });
}

}  // namespace weft::WEFT_ISA
