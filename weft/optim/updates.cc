#include "weft/optim/updates.h"

#include <algorithm>
#include <map>
#include <span>
#include <utility>

#include <fmt/format.h>

#include "weft/base/error.h"
#include "weft/device/operations.h"

namespace weft {

namespace {

ValueId add_value(Module& m, Value value) {
  m.values.push_back(std::move(value));
  return ValueId(std::ssize(m.values) - 1);
}

Piece& add_piece(Module& m, int unit, const std::string& layer, const std::string& name) {
  Piece piece;
  piece.place = {0, -1, unit, layer, name};
  m.updates.push_back(std::move(piece));
  return m.updates.back();
}

// A weight and what changes it.
struct Slab {
  ValueId weight, gradient;
  ParameterStates states;
  bool decay;
};

Tensor tensor_of(const Run& r, ValueId id) { return id.valid() ? r[id] : Tensor{}; }

// step: update_values.
void update_weights(const Run& r, std::span<const Slab> slabs, ValueId step, const OptimizerSpec& spec) {
  if (spec.kind == OptimizerKind::sgd) {
    std::vector<SgdSlab> all;
    for (const Slab& s : slabs)
      all.push_back(
          {r[s.weight], tensor_of(r, s.states.remainder), tensor_of(r, s.states.momentum), r[s.gradient], s.decay});
    return r.ops().sgd(r.stream(), {all, r[step], spec.momentum});
  }
  std::vector<AdamSlab> all;
  for (const Slab& s : slabs)
    all.push_back(
        {r[s.weight], tensor_of(r, s.states.remainder), r[s.states.m], r[s.states.v], r[s.gradient], s.decay});
  r.ops().adamw(r.stream(), {all, r[step], spec.beta1, spec.beta2, spec.eps});
}

// Where it is kept, and how it is called in plans.
std::pair<ValueId*, const char*> place_of(Content state, ParameterStates& states) {
  switch (state) {
    case Content::first_moment:
      return {&states.m, "m"};
    case Content::second_moment:
      return {&states.v, "v"};
    case Content::momentum:
      return {&states.momentum, "momentum"};
    case Content::weight:
    case Content::gradient:
      break;
  }
  WEFT_CHECK(false, "{} is no state of an optimizer", name_of(state));
}

}  // namespace

void add_updates(Module& m, const Precision& precision, const OptimizerSpec& spec) {
  WEFT_CHECK(m.updates.empty(), "the module already has updates");
  const DType state = precision.accumulate();
  for (std::size_t i = 0; i < m.parameters.size(); ++i) {
    const ParameterTensor& tensor = m.parameters[i];
    const TensorId id(static_cast<std::int64_t>(i));
    const auto made = [&](const char* what, DType dtype) {
      Value value{fmt::format("{}({})", what, tensor.name), ValueKind::state, dtype, tensor.shape, id};
      value.part = m.value(m.parameter_values[i]).part;
      return add_value(m, std::move(value));
    };
    ParameterStates states;
    if (tensor.trained) {
      for (const Content content : states_of(spec)) {
        const auto [place, name] = place_of(content, states);
        *place = made(name, state);
      }
      if (m.value(m.parameter_values[i]).dtype == DType::bf16) states.remainder = made("remainder", DType::i16);
    }
    m.states.push_back(states);
  }
  if (spec.clip > 0)
    m.squares = m.all_squares = add_value(m, {"squares", ValueKind::step, DType::f64, {norm_rows(m).count}});
  if (spec.clip > 0 && m.layout.stage_count() > 1)
    m.all_squares = add_value(m, {"all_stages(squares)", ValueKind::step, DType::f64, {norm_rows(m).count}});
  const ValueId squares = m.all_squares;
  // Updates read a copy of the step's numbers: when a late update runs, the host may already have given the next
  // step's.
  m.update_values = add_value(m, {"update_values", ValueKind::step, DType::f64, {StepValues::count}});
  m.values[m.update_values.index()].read_by_host = true;
  const ValueId given = m.step_values, step = m.update_values, loss = m.loss;
  std::map<int, std::vector<std::size_t>> tensors_of_unit;
  const std::vector<int> units = units_of_tensors(m);
  for (std::size_t i = 0; i < units.size(); ++i)
    if (m.gradient_values[i].valid()) tensors_of_unit[units[i]].push_back(i);

  Piece& clip = add_piece(m, 0, "step", squares.valid() ? "clip" : "numbers");
  if (squares.valid()) clip.update.uses.push_back({squares});
  clip.update.uses.insert(clip.update.uses.end(), {{loss}, {given}, {step, Access::write}});
  clip.update.run = [=, limit = spec.clip](const Run& r) {
    r.ops().cast(r.stream(), {r[given], r[step]});
    r.ops().clip_factor(r.stream(), {squares.valid() ? r[squares] : Tensor{}, r[loss], r[step], limit});
  };

  for (const auto& [unit, tensors] : tensors_of_unit) {
    struct Balanced {
      ValueId bias, counts;
      double rate;
    };
    std::vector<Slab> slabs;
    std::vector<Balanced> balanced;
    Piece& update = add_piece(m, unit, fmt::format("unit.{}", unit), spec.kind == OptimizerKind::sgd ? "sgd" : "adamw");
    update.update.uses.push_back({step});
    for (std::size_t i : tensors) {
      if (m.parameters[i].balance_rate > 0) {
        balanced.push_back({m.parameter_values[i], m.gradient_values[i], m.parameters[i].balance_rate});
        update.update.uses.push_back({m.gradient_values[i]});
        update.update.uses.push_back({m.parameter_values[i], Access::write});
        continue;
      }
      slabs.push_back(
          {m.parameter_values[i], m.gradient_values[i], m.states[i], m.parameters[i].decays || spec.decay_all});
      const Slab& s = slabs.back();
      update.update.uses.push_back({s.gradient});
      update.update.uses.push_back({s.weight, Access::write});
      for (ValueId value : s.states.all())
        if (value.valid()) update.update.uses.push_back({value, Access::write});
    }
    update.update.run = [=](const Run& r) {
      update_weights(r, slabs, step, spec);
      for (const Balanced& b : balanced)
        r.ops().update_expert_bias(r.stream(), {r[b.bias], r[b.counts], r[step], b.rate});
    };
  }
}

}  // namespace weft
