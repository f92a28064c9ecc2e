#include "weft/model/module.h"

#include "weft/base/error.h"

namespace weft {

std::string_view name_of(Phase phase) {
  switch (phase) {
    case Phase::forward:
      return "forward";
    case Phase::backward:
      return "backward";
    case Phase::weight_gradient:
      return "weight_gradient";
    case Phase::recompute:
      return "recompute";
    case Phase::evaluate:
      return "evaluate";
    case Phase::reduce:
      return "reduce";
    case Phase::update:
      return "update";
  }
  WEFT_CHECK(false, "phase {}", static_cast<int>(phase));
}

std::string_view name_of(Lane lane) {
  switch (lane) {
    case Lane::compute:
      return "compute";
    case Lane::exchange:
      return "exchange";
    case Lane::tensor:
      return "tensor";
    case Lane::gather:
      return "gather";
    case Lane::reduce:
      return "reduce";
    case Lane::pipe_in:
      return "pipe_in";
    case Lane::pipe_out:
      return "pipe_out";
    case Lane::back_in:
      return "back_in";
    case Lane::back_out:
      return "back_out";
    case Lane::stage_sums:
      return "stage_sums";
    case Lane::update:
      return "update";
  }
  WEFT_CHECK(false, "lane {}", static_cast<int>(lane));
}

std::string_view name_of(RecomputeModule module) {
  switch (module) {
    case RecomputeModule::core_attn:
      return "core_attn";
    case RecomputeModule::moe_act:
      return "moe_act";
    case RecomputeModule::layernorm:
      return "layernorm";
    case RecomputeModule::mla_up_proj:
      return "mla_up_proj";
    case RecomputeModule::mlp:
      return "mlp";
    case RecomputeModule::moe:
      return "moe";
    case RecomputeModule::shared_experts:
      return "shared_experts";
    case RecomputeModule::gdn_norm_out:
      return "gdn_norm_out";
  }
  WEFT_CHECK(false, "module {}", static_cast<int>(module));
}

std::string_view name_of(CollectiveKind kind) {
  switch (kind) {
    case CollectiveKind::all_to_all:
      return "all_to_all";
    case CollectiveKind::all_gather:
      return "all_gather";
    case CollectiveKind::reduce_scatter:
      return "reduce_scatter";
    case CollectiveKind::all_reduce:
      return "all_reduce";
    case CollectiveKind::broadcast:
      return "broadcast";
    case CollectiveKind::to_next:
      return "to_next";
    case CollectiveKind::to_previous:
      return "to_previous";
    case CollectiveKind::send:
      return "send";
    case CollectiveKind::receive:
      return "receive";
    case CollectiveKind::barrier:
      return "barrier";
  }
  WEFT_CHECK(false, "collective {}", static_cast<int>(kind));
}

const PieceCode& Piece::code(Phase phase) const {
  static const PieceCode no_code;
  switch (phase) {
    case Phase::forward:
      return forward;
    case Phase::backward:
      return backward;
    case Phase::weight_gradient:
      return weight_gradient;
    case Phase::recompute:
    case Phase::evaluate:
      return evaluate || only_in_training ? evaluate : forward;
    case Phase::reduce:
      return no_code;
    case Phase::update:
      return update;
  }
  WEFT_CHECK(false, "phase {}", static_cast<int>(phase));
}

const Shard* Module::shard_of(TensorId id, int division) const {
  const std::vector<Shard>& all = shards[static_cast<std::size_t>(division - 1)];
  return !all.empty() && all[id.index()].over.valid() ? &all[id.index()] : nullptr;
}

const Value& Module::whole(TensorId id) const {
  for (const int division : {1, 2})
    if (const Shard* shard = shard_of(id, division)) return value(shard->whole);
  return value(parameter_values[id.index()]);
}

std::vector<PieceId> first_uses_of_tensors(const Module& module) {
  std::vector<PieceId> first(module.parameters.size());
  for (std::size_t i = 0; i < module.pieces.size(); ++i)
    for (const ValueUse& use : module.pieces[i].forward.uses) {
      const Value& value = module.value(use.value);
      if (value.kind != ValueKind::parameter && value.kind != ValueKind::gathered) continue;
      PieceId& piece = first[value.tensor.index()];
      if (!piece.valid()) piece = PieceId(static_cast<std::int64_t>(i));
    }
  return first;
}

std::vector<int> units_of_tensors(const Module& module) {
  std::vector<int> units;
  for (const PieceId piece : first_uses_of_tensors(module))
    units.push_back(piece.valid() ? module.piece(piece).place.unit : 0);
  return units;
}

NormRows norm_rows(const Module& module) {
  const Layout& layout = module.layout;
  NormRows rows;
  for (const ParameterTensor& tensor : module.parameters) {
    std::vector<GroupId> over;
    for (const Placement::Split& split : tensor.placement.splits) over.push_back(split.over);
    const GroupId group = layout.spanned_by(over);
    std::size_t row = 0;
    if (group.valid())
      while (++row < rows.groups.size() && layout.members_of(rows.groups[row]) != layout.members_of(group)) {
      }
    if (tensor.trained && row == rows.groups.size()) rows.groups.push_back(group);
    rows.row_of.push_back(tensor.trained && !tensor.copy ? static_cast<std::int32_t>(row) : -1);
  }
  // Stages add up their squares, and some have fewer groups than others.
  constexpr std::size_t most = 8;
  WEFT_CHECK(rows.groups.size() <= most, "parameters are divided over {} groups of ranks", rows.groups.size() - 1);
  rows.count = static_cast<std::int64_t>(layout.stage_count() > 1 ? most : rows.groups.size());
  return rows;
}

}  // namespace weft
