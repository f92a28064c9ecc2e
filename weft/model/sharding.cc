#include "weft/model/sharding.h"

#include <algorithm>
#include <numeric>

#include <fmt/format.h>

#include "weft/base/error.h"

namespace weft {

namespace {

// Boxes of elements [first, last) of a row-major box, of which dims before `dim` are fixed already. The widest box in
// the middle, narrower ones before and after it.
void cut(const Box& box, int dim, std::int64_t first, std::int64_t last, std::vector<Box>& out) {
  if (first >= last) return;
  std::int64_t row = 1;
  for (int d = dim + 1; d < box.extent.dims(); ++d) row *= box.extent[d];
  const auto at = static_cast<std::size_t>(dim);
  const auto rows = [&](std::int64_t begin, std::int64_t count) {
    Box some = box;
    some.begin[at] += begin;
    Shape extent;
    for (int d = 0; d < box.extent.dims(); ++d) extent.append(d == dim ? count : box.extent[d]);
    some.extent = extent;
    return some;
  };
  const std::int64_t begin = (first + row - 1) / row, end = last / row;
  if (begin > end) return cut(rows(end, 1), dim + 1, first - end * row, last - end * row, out);
  if (first < begin * row) cut(rows(begin - 1, 1), dim + 1, first - (begin - 1) * row, row, out);
  if (begin < end) out.push_back(rows(begin, end - begin));
  if (end * row < last) cut(rows(end, 1), dim + 1, 0, last - end * row, out);
}

}  // namespace

std::string_view name_of(ShardingStrategy strategy) {
  switch (strategy) {
    case ShardingStrategy::no_shard:
      return "no_shard";
    case ShardingStrategy::optim:
      return "optim";
    case ShardingStrategy::optim_grads:
      return "optim_grads";
    case ShardingStrategy::optim_grads_params:
      return "optim_grads_params";
  }
  WEFT_CHECK(false, "strategy {}", static_cast<int>(strategy));
}

std::vector<ParameterPart> clipped(const ParameterPart& part, std::int64_t first, std::int64_t count) {
  WEFT_CHECK(part.place.rows_together == 0, "the rows of {} alternate with others", to_text(part.identity));
  const std::int64_t begin = std::max(first, part.place.offset),
                     end = std::min(first + count, part.place.offset + part.elements());
  if (begin >= end) return {};
  std::vector<Box> boxes;
  cut(part.box, 0, begin - part.place.offset, end - part.place.offset, boxes);
  std::vector<ParameterPart> parts;
  std::int64_t offset = begin - first;
  for (const Box& box : boxes) {
    parts.push_back(part);
    parts.back().box = box;
    parts.back().place.offset = offset;
    offset += parts.back().elements();
  }
  return parts;
}

namespace {

// Divides the tensors of a module, one after the other.
class Dividing {
 public:
  Dividing(Module& module, const Precision& precision, ShardingStrategy strategy, bool over_instances)
      : m_(module), precision_(precision), strategy_(strategy), over_instances_(over_instances) {}

  void divide(TensorId id) {
    ParameterTensor& tensor = m_.parameters[id.index()];
    const GroupId replicas = tensor.placement.replicas;
    if (tensor.balance_rate > 0) return;
    if (!replicas.valid()) return keep_float(m_.gradient_values[id.index()]);  // it travels nowhere
    if (!tensor.trained && strategy_ != ShardingStrategy::optim_grads_params) return;
    // Both ends of a pipeline are no instances of the optimizer: where these divide what they hold, the ends do not.
    if (over_instances_ && replicas == m_.layout.both_ends()) return keep_float(m_.gradient_values[id.index()]);
    Layout::ShardGroups over = m_.layout.shards_of(replicas);
    tensor.placement.replicas = {};
    if (over.outer.valid() && !over_instances_) std::swap(tensor.placement.replicas, over.outer);
    const std::int64_t inner = over.inner.valid() ? m_.layout.size_of(over.inner) : 1,
                       outer = over.outer.valid() ? m_.layout.size_of(over.outer) : 1;
    const std::int64_t row = tensor.shape.dims() > 1 ? tensor.shape[tensor.shape.dims() - 1] : 1;
    constexpr std::int64_t aligned = 128 / 2;  // elements of the smallest type, whose bytes are a multiple of 128
    const std::int64_t step = std::lcm(row, aligned), ranks = inner * outer;
    const std::int64_t part = ((tensor.shape.elements() + ranks - 1) / ranks + step - 1) / step * step;
    if (over.inner.valid()) cut_tensor(id, 1, over.inner, outer * part);
    if (over.outer.valid()) cut_tensor(id, 2, over.outer, part);
    if (!over.inner.valid() && !over.outer.valid()) keep_float(m_.gradient_values[id.index()]);
  }

 private:
  void keep_float(ValueId gradient) {
    if (precision_.float_gradient_parts && gradient.valid())
      m_.values[gradient.index()].dtype = precision_.accumulate();
  }

  // The part of a value that is whole in this division.
  ValueId add_part(ValueId whole, ValueKind kind, int division, std::int64_t elements) {
    Value part = m_.value(whole);
    part.name = fmt::format("{}({})", division == 1 ? "part" : "outer_part", part.name);
    part.kind = kind;
    part.shape = {elements};
    part.part = division;
    m_.values.push_back(std::move(part));
    return ValueId(std::ssize(m_.values) - 1);
  }

  // From what this rank has of the tensor so far to its part of that, of so many elements.
  void cut_tensor(TensorId id, int division, GroupId over, std::int64_t elements) {
    const std::size_t i = id.index();
    ParameterTensor& tensor = m_.parameters[i];
    Shard shard;
    shard.over = over;
    shard.elements = elements;
    std::int64_t held = 0;
    for (const ParameterPart& part : tensor.parts) held += part.elements();
    const std::int64_t first = m_.layout.position_in(over) * elements, room = m_.layout.size_of(over) * elements;
    shard.here = std::clamp<std::int64_t>(held - first, 0, elements);

    shard.whole = m_.parameter_values[i];
    shard.part = m_.parameter_values[i] = add_part(shard.whole, ValueKind::parameter, division, elements);
    m_.values[shard.whole.index()].kind = ValueKind::gathered;
    m_.values[shard.whole.index()].room = room;
    m_.values[shard.whole.index()].exchanged_over = over;
    if (m_.gradient_values[i].valid()) {
      shard.partial_gradient = m_.gradient_values[i];
      shard.part_gradient = add_part(shard.partial_gradient, ValueKind::parameter_gradient, division, elements);
      m_.gradient_values[i] = shard.part_gradient;
      keep_float(shard.part_gradient);
      Value& partial = m_.values[shard.partial_gradient.index()];
      partial.kind = ValueKind::partial_gradient;
      partial.room = room;
      partial.summed_over = over;
      // Instances exchange what they have summed over the step.
      partial.each_micro_batch = division == 1 && strategy_ != ShardingStrategy::optim;
    }
    std::vector<ParameterPart> parts;
    for (const ParameterPart& part : tensor.parts)
      for (ParameterPart& here : clipped(part, first, elements)) parts.push_back(std::move(here));
    tensor.parts = std::move(parts);
    tensor.shape = {elements};
    tensor.placement.splits.push_back({0, over});
    std::int64_t kept = 0;
    for (const ParameterPart& part : tensor.parts) kept += part.elements();
    WEFT_CHECK(kept == shard.here, "the part of {} here holds {} of {} elements", tensor.name, kept, shard.here);
    std::vector<Shard>& all = m_.shards[static_cast<std::size_t>(division - 1)];
    all.resize(m_.parameters.size());
    all[i] = shard;
  }

  Module& m_;
  const Precision& precision_;
  const ShardingStrategy strategy_;
  const bool over_instances_;
};

}  // namespace

void shard_parameters(Module& m, const Precision& precision, ShardingStrategy strategy, bool over_instances) {
  if (strategy == ShardingStrategy::no_shard) return;
  WEFT_CHECK(!over_instances || strategy == ShardingStrategy::optim_grads_params,
             "instances divide what they hold, and every rank of an instance holds whole weights");
  m.sharding = strategy;
  Dividing dividing(m, precision, strategy, over_instances);
  for (std::size_t i = 0; i < m.parameters.size(); ++i) dividing.divide(TensorId(static_cast<std::int64_t>(i)));
}

}  // namespace weft
