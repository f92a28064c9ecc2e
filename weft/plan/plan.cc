#include "weft/plan/plan.h"

#include <fmt/format.h>

#include "weft/base/error.h"

namespace weft {

std::string_view name_of(StorageClass storage) {
  switch (storage) {
    case StorageClass::weight:
      return "weight";
    case StorageClass::gradient:
      return "gradient";
    case StorageClass::state:
      return "state";
    case StorageClass::step:
      return "step";
    case StorageClass::constant:
      return "constant";
    case StorageClass::input:
      return "input";
    case StorageClass::output:
      return "output";
    case StorageClass::activation:
      return "activation";
    case StorageClass::scratch:
      return "scratch";
    case StorageClass::gathered:
      return "gathered";
    case StorageClass::partial:
      return "partial";
    case StorageClass::host:
      return "host";
  }
  WEFT_CHECK(false, "storage {}", static_cast<int>(storage));
}

bool shares_arena(StorageClass storage) {
  return storage == StorageClass::activation || storage == StorageClass::scratch || storage == StorageClass::gathered ||
         storage == StorageClass::partial;
}

std::int64_t elements_of(const ValueInfo& value) {
  return value.bytes / static_cast<std::int64_t>(size_of(value.dtype));
}

std::string_view name_of(NodeKind kind) {
  switch (kind) {
    case NodeKind::compute:
      return "compute";
    case NodeKind::communicate:
      return "communicate";
    case NodeKind::wait_counts:
      return "wait_counts";
    case NodeKind::sum_of_squares:
      return "sum_of_squares";
    case NodeKind::accumulate:
      return "accumulate";
    case NodeKind::release:
      return "release";
  }
  WEFT_CHECK(false, "node kind {}", static_cast<int>(kind));
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
    case Phase::recompute:
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
  std::string name = values[b.value.index()].name;
  if (b.micro_batch >= 0) name += fmt::format("@{}", b.micro_batch);
  if (b.instance > 0) name += fmt::format("#{}", b.instance);
  return name;
}

std::string Plan::name_of(const Node& node) const {
  const std::string& place = place_of(node).name;
  if (node.micro_batch < 0) return fmt::format("{} {}", weft::name_of(node.phase), place);
  return fmt::format("{} {}@{}", weft::name_of(node.phase), place, node.micro_batch);
}

ValueId Plan::add_value(ValueInfo value) {
  values.push_back(std::move(value));
  return ValueId(std::ssize(values) - 1);
}

BufferId Plan::add_buffer(ValueId value, std::int32_t micro_batch, std::int32_t instance) {
  buffers.push_back({value, micro_batch, 0, instance});
  return BufferId(std::ssize(buffers) - 1);
}

PlaceId Plan::add_place(int unit, const std::string& layer, const std::string& piece) {
  places.push_back({layer + "." + piece, layer, piece, unit});
  return PlaceId(std::ssize(places) - 1);
}

Node Plan::make_node(NodeKind node_kind, Phase phase, Lane lane, PlaceId place, std::int32_t micro_batch,
                     std::span<const BufferUse> used, std::span<const NodeCollective> communication) {
  Node node;
  node.kind = node_kind;
  node.phase = phase;
  node.lane = lane;
  node.place = place;
  node.micro_batch = micro_batch;
  node.first_use = static_cast<std::int32_t>(uses.size());
  node.uses = static_cast<std::int32_t>(used.size());
  uses.insert(uses.end(), used.begin(), used.end());
  node.first_collective = static_cast<std::int32_t>(collectives.size());
  node.collectives = static_cast<std::int32_t>(communication.size());
  collectives.insert(collectives.end(), communication.begin(), communication.end());
  return node;
}

bool lane_communicates(Lane lane) { return lane != Lane::compute && lane != Lane::update; }

}  // namespace weft
