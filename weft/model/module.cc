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
    case Lane::pipe:
      return "pipe";
    case Lane::update:
      return "update";
  }
  WEFT_CHECK(false, "lane {}", static_cast<int>(lane));
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
    case Phase::evaluate:
      return evaluate || only_in_training ? evaluate : forward;
    case Phase::reduce:
      return no_code;
    case Phase::update:
      return update;
  }
  WEFT_CHECK(false, "phase {}", static_cast<int>(phase));
}

std::vector<int> units_of_tensors(const Module& module) {
  std::vector<int> units(module.parameters.size(), 0);
  for (const Piece& piece : module.pieces)
    for (const ValueUse& use : piece.forward.uses) {
      const Value& value = module.value(use.value);
      if (value.kind != ValueKind::parameter) continue;
      int& unit = units[value.tensor.index()];
      if (unit == 0) unit = piece.place.unit;
    }
  return units;
}

GroupId norm_group(const ParameterTensor& tensor) {
  const std::vector<Placement::Split>& splits = tensor.placement.splits;
  WEFT_CHECK(splits.size() <= 1, "{} is divided over {} groups", tensor.name, splits.size());
  return splits.empty() ? GroupId{} : splits.front().over;
}

}  // namespace weft
