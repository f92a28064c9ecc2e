#include "weft/plan/plan.h"

#include <fmt/format.h>

#include "weft/base/error.h"

namespace weft {

std::string_view name_of(Storage storage) {
  switch (storage) {
    case Storage::weight:
      return "weight";
    case Storage::gradient:
      return "gradient";
    case Storage::state:
      return "state";
    case Storage::step:
      return "step";
    case Storage::constant:
      return "constant";
    case Storage::input:
      return "input";
    case Storage::output:
      return "output";
    case Storage::activation:
      return "activation";
    case Storage::scratch:
      return "scratch";
  }
  WEFT_CHECK(false, "storage {}", static_cast<int>(storage));
}

std::string_view name_of(PlanKind kind) {
  switch (kind) {
    case PlanKind::train:
      return "train";
    case PlanKind::gradients:
      return "gradients";
    case PlanKind::evaluate:
      return "evaluate";
  }
  WEFT_CHECK(false, "kind {}", static_cast<int>(kind));
}

bool has_phase(PlanKind kind, Phase phase) {
  switch (phase) {
    case Phase::forward:
    case Phase::backward:
    case Phase::weight_gradient:
      return kind != PlanKind::evaluate;
    case Phase::evaluate:
      return kind == PlanKind::evaluate;
    case Phase::reduce:
      return kind != PlanKind::gradients;
    case Phase::update:
      return kind == PlanKind::train;
  }
  WEFT_CHECK(false, "phase {}", static_cast<int>(phase));
}

std::string Plan::name_of(BufferId buffer) const {
  const Buffer& b = buffers[buffer.index()];
  const std::string& name = values[b.value.index()].name;
  return b.micro_batch < 0 ? name : fmt::format("{}@{}", name, b.micro_batch);
}

std::string Plan::name_of(const Node& node) const {
  const std::string& piece = pieces[node.piece.index()].name;
  if (node.micro_batch < 0) return fmt::format("{} {}", weft::name_of(node.phase), piece);
  return fmt::format("{} {}@{}", weft::name_of(node.phase), piece, node.micro_batch);
}

}  // namespace weft
