#include <algorithm>

#include "weft/base/error.h"
#include "weft/plan/orders/order.h"

namespace weft {

namespace {

using Direction = ModelPass::Direction;

OrderKind kind_of(const PipelineStage& s) {
  if (s.kind != OrderKind::automatic) return s.kind;
  return s.chunks > 1 ? OrderKind::interleaved : OrderKind::one_f_one_b;
}

void check(const PipelineStage& s) {
  WEFT_CHECK(s.stages >= 1 && s.stage >= 0 && s.stage < s.stages && s.chunks >= 1 && s.micro_batches >= 1,
             "stage {} of {} with {} chunks and {} micro-batches", s.stage, s.stages, s.chunks, s.micro_batches);
  const OrderKind kind = kind_of(s);
  if (kind != OrderKind::interleaved) {
    if (s.chunks > 1)
      throw UserError("the order {} takes one segment per stage, and there are {}; use interleaved", name_of(kind),
                      s.chunks);
    return;
  }
  if (s.group > 0 && s.group < s.stages)
    throw UserError(
        "interleaved stages need at least as many micro-batches in a group as there are stages: {} for {} stages",
        s.group, s.stages);
}

// Micro-batches of each group. A last group of fewer than there are stages would let stages wait for each other, or for
// long: its micro-batches go to the other groups, the first ones first.
std::vector<int> groups_of(const PipelineStage& s) {
  const int size = std::min(s.group > 0 ? s.group : s.stages, s.micro_batches);
  const int rest = s.micro_batches % size;
  std::vector<int> groups(static_cast<std::size_t>(s.micro_batches / size), size);
  if (rest >= s.stages)
    groups.push_back(rest);
  else
    for (int i = 0; i < rest; ++i) ++groups[static_cast<std::size_t>(i) % groups.size()];
  return groups;
}

// Every forward pass in its order: group after group of micro-batches, in each chunk after chunk. Backward passes have
// the same order with the chunks reversed.
std::vector<ModelPass> table_of(const PipelineStage& s) {
  std::vector<ModelPass> table;
  int first = 0;
  for (const int size : groups_of(s)) {
    for (int chunk = 0; chunk < s.chunks; ++chunk)
      for (int m = first; m < first + size; ++m) table.push_back({Direction::forward, m, chunk});
    first += size;
  }
  return table;
}

}  // namespace

std::string_view name_of(OrderKind kind) {
  switch (kind) {
    case OrderKind::automatic:
      return "automatic";
    case OrderKind::one_f_one_b:
      return "1f1b";
    case OrderKind::interleaved:
      return "interleaved";
    case OrderKind::zero_bubble:
      return "zero-bubble";
  }
  WEFT_CHECK(false, "order {}", static_cast<int>(kind));
}

namespace {

// By backward pass: the forward passes before it, beside the one directly before it. A group's passes need (chunks - 1)
// times its size, so that its micro-batches can have come back from the last chunk. Where a smaller group follows, forward
// passes pause until it is due: the last stage never runs the last chunk ahead of its backward pass, and so adds to the
// head's gradient one micro-batch after the other.
std::vector<int> leads_of(const PipelineStage& s) {
  const int later = s.stages - s.stage - 1, all = s.micro_batches * s.chunks;
  const bool interleaved = kind_of(s) == OrderKind::interleaved;
  const int ahead = interleaved ? 2 * later + (s.woven ? 1 : 0) : s.woven ? 2 * later + 1 : later;
  std::vector<int> leads;
  for (const int size : groups_of(s))
    for (int i = 0; i < size * s.chunks; ++i)
      leads.push_back(std::min(static_cast<int>(leads.size()) + (s.chunks - 1) * size + ahead, all));
  for (std::size_t k = leads.size() - 1; k-- > 0;) leads[k] = std::min(leads[k], leads[k + 1]);
  return leads;
}

}  // namespace

int warm_up_passes(const PipelineStage& s) { return leads_of(s).front(); }

PassOrder pipeline_order(const PipelineStage& s) {
  check(s);
  const std::vector<ModelPass> table = table_of(s);
  const std::vector<int> leads = leads_of(s);
  const int all = static_cast<int>(table.size());
  const bool zero_bubble = kind_of(s) == OrderKind::zero_bubble && s.stages > 1;
  PassOrder order;
  int forward = 0, weights = 0;  // passes so far
  for (int k = 0; k < all; ++k) {
    const int first = forward;
    while (forward < std::min(leads[static_cast<std::size_t>(k)] + 1, all))
      order.push_back(table[static_cast<std::size_t>(forward++)]);
    if (s.woven && forward > first) order.back().with_next = forward > leads[static_cast<std::size_t>(k)];
    ModelPass pass = table[static_cast<std::size_t>(k)];
    pass.direction = Direction::backward;
    pass.chunk = s.chunks - 1 - pass.chunk;
    pass.weights_later = zero_bubble;
    order.push_back(pass);
    // As many wait as there are earlier stages: then every stage keeps the activations of as many micro-batches as the
    // first stage does in any case.
    if (zero_bubble && k >= s.stage) order.push_back({Direction::weight_gradients, weights++, 0});
  }
  if (zero_bubble)
    while (weights < all) order.push_back({Direction::weight_gradients, weights++, 0});
  return order;
}

double bubble_of(const PipelineStage& s, const PassTimes& t) {
  const double others = s.stages - 1;
  const OrderKind kind = kind_of(s);
  if (kind == OrderKind::zero_bubble) return others * (t.forward + t.backward - t.weight_gradients);
  const double pass = t.forward + t.backward + (s.weights_after_passes ? 0 : t.weight_gradients);
  return others * pass / (kind == OrderKind::interleaved ? s.chunks : 1);
}

}  // namespace weft
