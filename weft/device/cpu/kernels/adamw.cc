// clip_factor and adamw.
#include <cmath>

#include "weft/device/cpu/kernels/dispatch.h"
#include "weft/device/operations/optimizer.h"

namespace weft::WEFT_ISA {

namespace {

// The step's numbers, as the loop over elements uses them.
template <class Acc>
struct StepConstants {
  Acc clip, beta1, rest1, beta2, rest2, inverse1, inverse2, eps, rate, decay;

  static StepConstants of(const AdamW& op, bool decays) {
    const double* value = op.step_values.as<double>();
    return {static_cast<Acc>(value[StepValues::clip_factor]),
            static_cast<Acc>(op.beta1),
            static_cast<Acc>(1 - op.beta1),
            static_cast<Acc>(op.beta2),
            static_cast<Acc>(1 - op.beta2),
            static_cast<Acc>(1 / value[StepValues::correction1]),
            static_cast<Acc>(1 / value[StepValues::correction2]),
            static_cast<Acc>(op.eps),
            static_cast<Acc>(value[StepValues::learning_rate]),
            static_cast<Acc>(decays ? value[StepValues::weight_decay] : 0)};
  }
};

// What is updated: weights as they are, or floats of which each is a bf16 weight and a remainder.
template <class W>
struct Weights {
  W* weight;
  WEFT_INLINE W get(std::int64_t i) const { return weight[i]; }
  WEFT_INLINE void set(std::int64_t i, W x) const { weight[i] = x; }
};
struct SplitWeights {
  bfloat16* weight;
  std::int16_t* remainder;
  WEFT_INLINE float get(std::int64_t i) const { return join_float({weight[i], remainder[i]}); }
  WEFT_INLINE void set(std::int64_t i, float x) const {
    const SplitFloat split = split_float(x);
    weight[i].bits = split.weight.bits;
    remainder[i] = split.remainder;
  }
};

// Elements [begin, end) of a slab.
template <class Acc, class Values, class G>
void update(const StepConstants<Acc>& k, const Values& values, Acc* m, Acc* v, const G* gradient, std::int64_t begin,
            std::int64_t end) {
#pragma omp simd
  for (std::int64_t i = begin; i < end; ++i) {
    const Acc g = k.clip * widen_to<Acc>(gradient[i]);
    const Acc first = k.beta1 * m[i] + k.rest1 * g, second = k.beta2 * v[i] + k.rest2 * g * g;
    const Acc old = values.get(i);
    m[i] = first;
    v[i] = second;
    const Acc direction = first * k.inverse1 / (std::sqrt(second * k.inverse2) + k.eps);
    values.set(i, old - k.rate * (direction + k.decay * old));
  }
}

template <class W, class G>
void update_slab(const AdamW& op, const AdamSlab& slab, std::int64_t begin, std::int64_t end) {
  using Acc = Accumulator<W>;
  const StepConstants<Acc> constants = StepConstants<Acc>::of(op, slab.decay);
  Acc *m = slab.m.as<Acc>(), *v = slab.v.as<Acc>();
  const G* gradient = slab.gradient.as<G>();
  W* weight = slab.weight.as<W>();
  if constexpr (dtype_of<W>() == DType::bf16)
    update(constants, SplitWeights{weight, slab.remainder.as<std::int16_t>()}, m, v, gradient, begin, end);
  else
    update(constants, Weights<W>{weight}, m, v, gradient, begin, end);
}

void check(const AdamSlab& slab) {
  const DType acc = slab.weight.dtype == DType::f64 ? DType::f64 : DType::f32;
  require(slab.m.dtype == acc && slab.v.dtype == acc, "adamw", "m or v are not f32 (f64 for f64 weights)");
  const bool split = slab.weight.dtype == DType::bf16;
  require(slab.remainder.given() == split && (!split || slab.remainder.dtype == DType::i16), "adamw",
          "bf16 weights have remainders of i16, others none");
  const std::int64_t count = slab.weight.shape.elements();
  for (const Tensor* tensor : {&slab.weight, &slab.remainder, &slab.m, &slab.v, &slab.gradient})
    require(!tensor->given() || tensor == &slab.weight || tensor->shape.elements() == count, "adamw",
            "a slab's tensors differ in length");
  for (const Tensor* tensor : {&slab.weight, &slab.remainder, &slab.m, &slab.v, &slab.gradient})
    require(!tensor->given() || contiguous(*tensor), "adamw", "needs contiguous tensors");
}

}  // namespace

void adamw(Stream& stream, const AdamW& op) {
  require(op.step_values.dtype == DType::f64 && op.step_values.shape.elements() >= StepValues::count, "adamw",
          "step_values are not f64 [count]");
  if (op.step_values.as<double>()[StepValues::finite] == 0) return;
  std::int64_t total = 0;  // in units that ranges may begin at
  const auto units_of = [](const AdamSlab& slab) {
    return (slab.weight.shape.elements() + range_unit - 1) / range_unit;
  };
  for (const AdamSlab& slab : op.slabs) {
    check(slab);
    total += units_of(slab);
  }
  split(stream, total, elements_a_thread / range_unit, [&](std::int64_t begin, std::int64_t end) {
    std::int64_t base = 0;  // the slab's first unit
    for (const AdamSlab& slab : op.slabs) {
      const std::int64_t units = units_of(slab);
      const std::int64_t first = std::max(begin - base, std::int64_t{0}), last = std::min(end - base, units);
      base += units;
      if (first >= last) continue;
      const std::int64_t from = first * range_unit, to = std::min(last * range_unit, slab.weight.shape.elements());
      with_storage("adamw", slab.weight.dtype, [&](auto w) {
        using W = typename decltype(w)::type;
        if (slab.gradient.dtype == dtype_of<Accumulator<W>>())
          update_slab<W, Accumulator<W>>(op, slab, from, to);
        else if (slab.gradient.dtype == DType::bf16)
          update_slab<W, bfloat16>(op, slab, from, to);
        else
          refuse("adamw", "the gradient is neither acc nor bf16");
      });
    }
  });
}

void clip_factor(Stream&, const ClipFactor& op) {
  require(!op.sum.given() || op.sum.dtype == DType::f64, "clip_factor", "the sum is not f64");
  require(op.step_values.dtype == DType::f64 && op.step_values.shape.elements() >= StepValues::count, "clip_factor",
          "step_values are not f64 [count]");
  double* value = op.step_values.as<double>();
  double sum = 0;
  for (std::int64_t i = 0; op.sum.given() && i < op.sum.shape.elements(); ++i) sum += op.sum.as<double>()[i];
  const double norm = std::sqrt(sum);
  const double loss = op.loss.given() ? read_scalar("clip_factor", op.loss) : 0;
  value[StepValues::gradient_norm] = norm;
  value[StepValues::clip_factor] = op.limit > 0 ? std::min(1.0, op.limit / (norm + 1e-6)) : 1.0;
  value[StepValues::finite] = std::isfinite(norm) && std::isfinite(loss) ? 1.0 : 0.0;
}

}  // namespace weft::WEFT_ISA
