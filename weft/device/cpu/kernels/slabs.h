// What the updates of all optimizers have in common: what is updated, and who updates which elements.
#pragma once

#include "weft/device/cpu/kernels/dispatch.h"
#include "weft/device/operations/optimizer.h"

namespace weft::WEFT_ISA {

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
template <class W, class Slab>
auto trained_weights(const Slab& slab) {
  if constexpr (dtype_of<W>() == DType::bf16)
    return SplitWeights{slab.weight.template as<W>(), slab.remainder.template as<std::int16_t>()};
  else
    return Weights<W>{slab.weight.template as<W>()};
}

// body(W, G) for the types of weights and gradients.
template <class Slab, class Body>
void with_slab_types(const char* operation, const Slab& slab, const Body& body) {
  with_storage(operation, slab.weight.dtype, [&](auto weight) {
    using Acc = Accumulator<typename decltype(weight)::type>;
    if (slab.gradient.dtype == dtype_of<Acc>())
      body(weight, Type<Acc>{});
    else
      body(weight, Type<bfloat16>{});
  });
}

// Deals the elements of all slabs out to the threads: body(slab, begin, end).
template <class Slabs, class Body>
void split_slabs(Stream& stream, const Slabs& slabs, const Body& body) {
  const auto units_of = [](const auto& slab) {  // that ranges may begin at
    return (slab.weight.shape.elements() + range_unit - 1) / range_unit;
  };
  std::int64_t total = 0;
  for (const auto& slab : slabs) total += units_of(slab);
  split(stream, total, elements_per_thread / range_unit, [&](std::int64_t begin, std::int64_t end) {
    std::int64_t base = 0;  // the slab's first unit
    for (const auto& slab : slabs) {
      const std::int64_t units = units_of(slab);
      const std::int64_t first = std::max(begin - base, std::int64_t{0}), last = std::min(end - base, units);
      base += units;
      if (first >= last) continue;
      body(slab, first * range_unit, std::min(last * range_unit, slab.weight.shape.elements()));
    }
  });
}

}  // namespace weft::WEFT_ISA
