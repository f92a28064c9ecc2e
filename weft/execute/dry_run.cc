#include "weft/execute/dry_run.h"

#include <cmath>
#include <set>

#include "weft/device/missing_operations.h"
#include "weft/device/operations.h"
#include "weft/execute/sum_of_squares.h"

namespace weft {

namespace {

class Dry : public Run {
 public:
  Dry(const Module& module, const Operations& operations, Stream& stream, const DryRun& how)
      : module_(module), how_(how) {
    operations_ = &operations;
    stream_ = &stream;
  }
  Tensor operator[](ValueId value) const override {
    const Value& v = module_.value(value);
    if (v.in_use == 1 || how_.rows == DryRun::Rows::all) return Tensor(nullptr, v.dtype, v.shape);
    Shape used{static_cast<std::int64_t>(std::ceil(v.in_use * static_cast<double>(v.shape[0])))};
    for (int dim = 1; dim < v.shape.dims(); ++dim) used.append(v.shape[dim]);
    return Tensor(nullptr, v.dtype, used);
  }
  Store store(ValueId) const override { return how_.store; }

 private:
  const Module& module_;
  DryRun how_;
};

}  // namespace

void dry_run(const Module& module, const Plan& plan, const Node& node, const Operations& operations, Stream& stream,
             const DryRun& how) {
  if (node.kind == NodeKind::sum_of_squares) {
    sum_of_squares(plan, node, operations, stream, [&](BufferId buffer) {
      const ValueInfo& value = plan.value_of(buffer);
      return Tensor(nullptr, value.dtype, value.shape);
    });
  }
  if (node.kind == NodeKind::accumulate) {
    const auto uses = plan.uses_of(node);
    const auto tensor = [&](const BufferUse& use) {
      return Tensor(nullptr, plan.value_of(use.buffer).dtype, plan.value_of(use.buffer).shape);
    };
    for (std::size_t i = 0; i + 1 < uses.size(); i += 2) {
      const Tensor sum = tensor(uses[i]), kept = tensor(uses[i + 1]);
      if (how.store == Store::write) operations.cast(stream, {sum, kept});
      if (how.store == Store::add) operations.add(stream, {kept, sum, kept});
    }
  }
  if (node.kind != NodeKind::compute) return;
  module.piece(node.piece).code(node.phase, node.part).run(Dry(module, operations, stream, how));
}

std::vector<std::string> missing_operations(const Module& module, const Plan& plan, const Device& device) {
  UsedOperations used;
  std::set<std::pair<PlaceId, Phase>> seen;
  for (const Node& node : plan.nodes)
    if (seen.emplace(node.place, node.phase).second) dry_run(module, plan, node, UsedOperations::table(), used);
  return missing_operations(device.operations(), used.names());
}

}  // namespace weft
