// clip_factor and adamw.
#include <cmath>

#include "weft/device/argument_checks.h"
#include "weft/device/cpu/kernels/slabs.h"

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
  update(constants, trained_weights<W>(slab), m, v, gradient, begin, end);
}

}  // namespace

void adamw(Stream& stream, const AdamW& op) {
  check_arguments("adamw", op);
  if (op.step_values.as<double>()[StepValues::finite] == 0) return;
  split_slabs(stream, op.slabs, [&](const AdamSlab& slab, std::int64_t from, std::int64_t to) {
    with_slab_types("adamw", slab, [&](auto w, auto g) {
      update_slab<typename decltype(w)::type, typename decltype(g)::type>(op, slab, from, to);
    });
  });
}

void clip_factor(Stream&, const ClipFactor& op) {
  check_arguments("clip_factor", op);
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
