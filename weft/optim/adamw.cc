#include "weft/optim/adamw.h"

#include <map>

#include <fmt/format.h>

#include "weft/base/error.h"
#include "weft/device/operations.h"

namespace weft {

namespace {

ValueId add_value(Module& m, Value value) {
  m.values.push_back(std::move(value));
  return ValueId(std::ssize(m.values) - 1);
}

// The unit that uses a parameter first.
std::vector<int> units_of_tensors(const Module& m) {
  std::vector<int> units(m.parameters.size(), 0);
  for (const Piece& piece : m.pieces)
    for (const ValueUse& use : piece.forward.uses) {
      const Value& value = m.value(use.value);
      if (value.kind != ValueKind::parameter) continue;
      int& unit = units[value.tensor.index()];
      if (unit == 0) unit = piece.place.unit;
    }
  return units;
}

Piece& add_piece(Module& m, int unit, const std::string& layer, const std::string& name) {
  Piece piece;
  piece.place = {0, -1, unit, layer, name};
  m.updates.push_back(std::move(piece));
  return m.updates.back();
}

// Sums values over the ranks of a group, in place: rows before the first one stay as they are.
void sum_over_ranks(Module& m, Piece& piece, const std::string& group, const std::vector<ValueId>& values,
                    std::int64_t first_row = 0) {
  piece.lane = Lane::reduce;
  for (ValueId value : values) {
    m.values[value.index()].summed_over = group;
    m.values[value.index()].first_summed_row = first_row;
    piece.reduce.uses.push_back({value, Access::write});
    piece.reduce.collectives.push_back({CollectiveKind::all_reduce, group, value, value, {}, {}, first_row});
  }
}

// squares: the sum over all gradients; where ranks hold different experts, dense and experts' part apart.
void add_norm(Module& m, ValueId squares, bool experts) {
  std::vector<ValueId> dense, expert;
  for (std::size_t i = 0; i < m.parameters.size(); ++i)
    if (m.parameters[i].trained) (m.parameters[i].expert && experts ? expert : dense).push_back(m.gradient_values[i]);
  Piece& norm = add_piece(m, 0, "step", "norm");
  for (const auto* gradients : {&dense, &expert})
    for (ValueId gradient : *gradients) norm.update.uses.push_back({gradient});
  norm.update.uses.push_back({squares, Access::write});
  norm.update.run = [=](const Run& r) {
    const auto sum = [&](const std::vector<ValueId>& gradients, std::int64_t place) {
      std::vector<Tensor> all;
      for (ValueId gradient : gradients) all.push_back(r[gradient]);
      r.ops().sum_of_squares(r.stream(), {all, r[squares].slice_rows(place, 1)});
    };
    sum(dense, 0);
    if (experts) sum(expert, 1);
  };
  if (experts) {
    sum_over_ranks(m, add_piece(m, 0, "step", "squares"), "ep", {squares}, 1);  // the dense part is the same everywhere
  }
}

}  // namespace

void add_loss_reduction(Module& m, const GradientLayout& layout, bool trains) {
  if (layout.data_shards <= 1) return;
  std::vector<ValueId> losses = m.mtp_losses;
  losses.insert(losses.begin(), m.loss);
  if (trains && m.router_losses.valid()) losses.push_back(m.router_losses);
  if (trains && m.indexer_loss.valid()) losses.push_back(m.indexer_loss);  // made by backward
  sum_over_ranks(m, add_piece(m, 0, "step", "loss"), "dp", losses);
}

void add_updates(Module& m, const Precision& precision, const AdamOptions& options, const GradientLayout& layout) {
  WEFT_CHECK(m.updates.empty(), "updates are there already");
  const DType state = precision.accumulate();
  for (std::size_t i = 0; i < m.parameters.size(); ++i) {
    const ParameterTensor& tensor = m.parameters[i];
    const TensorId id(static_cast<std::int64_t>(i));
    const auto made = [&](const char* what, DType dtype) {
      return add_value(m, {fmt::format("{}({})", what, tensor.name), ValueKind::state, dtype, tensor.shape, id});
    };
    ParameterStates states;
    if (tensor.trained) {
      states.m = made("m", state);
      states.v = made("v", state);
      if (m.value(m.parameter_values[i]).dtype == DType::bf16) states.remainder = made("remainder", DType::i16);
    }
    m.states.push_back(states);
  }
  const bool experts = layout.expert_ranks > 1;  // some gradients are only here
  ValueId squares;
  if (options.clip > 0) squares = add_value(m, {"squares", ValueKind::step, DType::f64, {experts ? 2 : 1}});
  // Updates have numbers of their own: those that the host gives may be the next step's when an update runs.
  m.update_values = add_value(m, {"update_values", ValueKind::step, DType::f64, {StepValues::count}});
  m.values[m.update_values.index()].read_by_host = true;
  const ValueId given = m.step_values, step = m.update_values, loss = m.loss;
  std::map<int, std::vector<std::size_t>> tensors_of_unit;
  const std::vector<int> units = units_of_tensors(m);
  for (std::size_t i = 0; i < units.size(); ++i)
    if (m.gradient_values[i].valid()) tensors_of_unit[units[i]].push_back(i);

  if (layout.data_shards > 1) {
    add_loss_reduction(m, layout, true);
    for (auto it = tensors_of_unit.rbegin(); it != tensors_of_unit.rend(); ++it) {
      std::vector<ValueId> dense, expert;
      for (std::size_t i : it->second)
        (m.parameters[i].expert && experts ? expert : dense).push_back(m.gradient_values[i]);
      Piece& reduce = add_piece(m, it->first, fmt::format("unit.{}", it->first), "gradients");
      sum_over_ranks(m, reduce, "dp", dense);
      if (layout.expert_shards > 1) sum_over_ranks(m, reduce, "edp", expert);
      if (!reduce.reduce) m.updates.pop_back();  // experts alone, and each on one rank
    }
  }

  if (squares.valid()) add_norm(m, squares, experts);
  Piece& clip = add_piece(m, 0, "step", squares.valid() ? "clip" : "numbers");
  if (squares.valid()) clip.update.uses.push_back({squares});
  clip.update.uses.insert(clip.update.uses.end(), {{loss}, {given}, {step, Access::write}});
  clip.update.run = [=, limit = options.clip](const Run& r) {
    r.ops().cast(r.stream(), {r[given], r[step]});
    r.ops().clip_factor(r.stream(), {squares.valid() ? r[squares] : Tensor{}, r[loss], r[step], limit});
  };

  for (const auto& [unit, tensors] : tensors_of_unit) {
    struct Slab {
      ValueId weight, gradient;
      ParameterStates states;
      bool decay;
    };
    struct Balanced {
      ValueId bias, counts;
      double rate;
    };
    std::vector<Slab> slabs;
    std::vector<Balanced> balanced;
    Piece& update = add_piece(m, unit, fmt::format("unit.{}", unit), "adamw");
    update.update.uses.push_back({step});
    for (std::size_t i : tensors) {
      if (m.parameters[i].balance_rate > 0) {
        balanced.push_back({m.parameter_values[i], m.gradient_values[i], m.parameters[i].balance_rate});
        update.update.uses.push_back({m.gradient_values[i]});
        update.update.uses.push_back({m.parameter_values[i], Access::write});
        continue;
      }
      slabs.push_back(
          {m.parameter_values[i], m.gradient_values[i], m.states[i], m.parameters[i].decays || options.decay_all});
      const Slab& s = slabs.back();
      update.update.uses.push_back({s.gradient});
      for (ValueId value : {s.weight, s.states.m, s.states.v, s.states.remainder})
        if (value.valid()) update.update.uses.push_back({value, Access::write});
    }
    update.update.run = [=](const Run& r) {
      std::vector<AdamSlab> all;
      for (const Slab& s : slabs)
        all.push_back({r[s.weight], s.states.remainder.valid() ? r[s.states.remainder] : Tensor{}, r[s.states.m],
                       r[s.states.v], r[s.gradient], s.decay});
      r.ops().adamw(r.stream(), {all, r[step], options.beta1, options.beta2, options.eps});
      for (const Balanced& b : balanced)
        r.ops().update_expert_bias(r.stream(), {r[b.bias], r[b.counts], r[step], b.rate});
    };
  }
}

}  // namespace weft
