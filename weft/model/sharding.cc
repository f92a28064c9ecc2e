#include "weft/model/sharding.h"

#include <algorithm>
#include <numeric>

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

void shard_parameters(Module& m, const Precision& precision, ShardingStrategy strategy) {
  if (strategy == ShardingStrategy::no_shard) return;
  const auto keep_float = [&](ValueId gradient) {
    if (precision.float_gradient_parts && gradient.valid()) m.values[gradient.index()].dtype = precision.accumulate();
  };
  const auto add_value = [&](const Value& of, ValueKind kind, std::int64_t elements) {
    Value part = of;
    part.name = "part(" + of.name + ")";
    part.kind = kind;
    part.shape = {elements};
    part.part = true;
    m.values.push_back(std::move(part));
    return ValueId(std::ssize(m.values) - 1);
  };
  for (std::size_t i = 0; i < m.parameters.size(); ++i) {
    ParameterTensor& tensor = m.parameters[i];
    const GroupId over = tensor.placement.replicas;
    if (tensor.balance_rate > 0) continue;
    if (!over.valid()) {
      keep_float(m.gradient_values[i]);  // it travels nowhere
      continue;
    }
    if (!tensor.trained && strategy != ShardingStrategy::optim_grads_params) continue;
    const std::int64_t ranks = m.layout.size_of(over), elements = tensor.shape.elements();
    const std::int64_t row = tensor.shape.dims() > 1 ? tensor.shape[tensor.shape.dims() - 1] : 1;
    constexpr std::int64_t aligned = 128 / 2;  // elements of the smallest type, whose bytes are a multiple of 128
    const std::int64_t step = std::lcm(row, aligned);
    Shard shard;
    shard.over = over;
    shard.elements = ((elements + ranks - 1) / ranks + step - 1) / step * step;
    const std::int64_t first = m.layout.position_in(over) * shard.elements;
    shard.here = std::clamp<std::int64_t>(elements - first, 0, shard.elements);

    shard.whole = m.parameter_values[i];
    m.parameter_values[i] = add_value(m.value(shard.whole), ValueKind::parameter, shard.elements);
    m.values[shard.whole.index()].kind = ValueKind::gathered;
    m.values[shard.whole.index()].room = ranks * shard.elements;
    if (m.gradient_values[i].valid()) {
      shard.partial_gradient = m.gradient_values[i];
      m.gradient_values[i] = add_value(m.value(shard.partial_gradient), ValueKind::parameter_gradient, shard.elements);
      keep_float(m.gradient_values[i]);
      Value& partial = m.values[shard.partial_gradient.index()];
      partial.kind = ValueKind::partial_gradient;
      partial.room = ranks * shard.elements;
      partial.each_micro_batch = strategy != ShardingStrategy::optim;
    }
    std::vector<ParameterPart> parts;
    for (const ParameterPart& part : tensor.parts)
      for (ParameterPart& here : clipped(part, first, shard.elements)) parts.push_back(std::move(here));
    tensor.parts = std::move(parts);
    tensor.shape = {shard.elements};
    tensor.placement.splits.push_back({0, over});
    tensor.placement.replicas = {};
    std::int64_t held = 0;
    for (const ParameterPart& part : tensor.parts) held += part.elements();
    WEFT_CHECK(held == shard.here, "the part of {} here holds {} of {} elements", tensor.name, held, shard.here);
    m.sharding = strategy;
    m.shards.resize(m.parameters.size());
    m.shards[i] = shard;
  }
}

}  // namespace weft
