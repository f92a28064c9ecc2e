#include "weft/device/argument_checks.h"
#include "weft/device/cpu/kernels/slabs.h"

namespace weft::WEFT_ISA {

namespace {

// The step's numbers, as the loop over elements uses them.
template <class Acc>
struct StepConstants {
  Acc clip, momentum, rate, decay;

  static StepConstants of(const Sgd& op, bool decays) {
    const double* value = op.step_values.as<double>();
    return {static_cast<Acc>(value[StepValues::clip_factor]), static_cast<Acc>(op.momentum),
            static_cast<Acc>(value[StepValues::learning_rate]),
            static_cast<Acc>(decays ? value[StepValues::weight_decay] : 0)};
  }
};

// Elements [begin, end) of a slab. momentum: null where `keeps` is false.
template <bool keeps, class Acc, class Values, class G>
void update(const StepConstants<Acc>& k, const Values& values, Acc* momentum, const G* gradient, std::int64_t begin,
            std::int64_t end) {
#pragma omp simd
  for (std::int64_t i = begin; i < end; ++i) {
    const Acc old = values.get(i);
    Acc step = k.clip * widen_to<Acc>(gradient[i]) + k.decay * old;
    if constexpr (keeps) {
      step += k.momentum * momentum[i];
      momentum[i] = step;
    }
    values.set(i, old - k.rate * step);
  }
}

template <class W, class G>
void update_slab(const Sgd& op, const SgdSlab& slab, std::int64_t begin, std::int64_t end) {
  using Acc = Accumulator<W>;
  const StepConstants<Acc> constants = StepConstants<Acc>::of(op, slab.decay);
  const G* gradient = slab.gradient.as<G>();
  if (slab.momentum.given())
    update<true>(constants, trained_weights<W>(slab), slab.momentum.as<Acc>(), gradient, begin, end);
  else
    update<false, Acc>(constants, trained_weights<W>(slab), nullptr, gradient, begin, end);
}

}  // namespace

void sgd(Stream& stream, const Sgd& op) {
  check_arguments("sgd", op);
  if (op.step_values.as<double>()[StepValues::finite] == 0) return;
  split_slabs(stream, op.slabs, [&](const SgdSlab& slab, std::int64_t from, std::int64_t to) {
    with_slab_types("sgd", slab, [&](auto w, auto g) {
      update_slab<typename decltype(w)::type, typename decltype(g)::type>(op, slab, from, to);
    });
  });
}

}  // namespace weft::WEFT_ISA
