#include "weft/plan/passes/transfer.h"

#include <algorithm>
#include <map>
#include <optional>

#include <fmt/format.h>

#include "weft/base/error.h"

namespace weft {

namespace {

using Direction = ModelPass::Direction;

class Transfers {
 public:
  Transfers(const Plan& plan, const Module& module, const PassOrder& order)
      : plan_(plan), module_(module), order_(order), before_(plan.nodes.size() + 1), after_(plan.nodes.size()) {
    for (std::size_t i = 0; i < plan.buffers.size(); ++i)
      if (plan.buffers[i].instance == 0)
        buffers_[{plan.buffers[i].value, plan.buffers[i].micro_batch}] = BufferId(static_cast<std::int64_t>(i));
    find_passes();
  }

  Plan run() {
    for (std::size_t p = 0; p < order_.size(); ++p)
      if (order_[p].direction != Direction::weight_gradients) add(p);
    std::vector<Node> nodes;
    for (std::size_t i = 0; i <= plan_.nodes.size(); ++i) {
      nodes.insert(nodes.end(), before_[i].begin(), before_[i].end());
      if (i == plan_.nodes.size()) break;
      nodes.push_back(plan_.nodes[i]);
      nodes.insert(nodes.end(), after_[i].begin(), after_[i].end());
    }
    plan_.nodes = std::move(nodes);
    return std::move(plan_);
  }

 private:
  // Where every pass begins in the list; of one without nodes, where the next begins. Passes that run together begin
  // together.
  void find_passes() {
    const std::vector<int> chunks = chunks_of_units(module_);
    std::map<std::tuple<int, int, bool>, std::size_t> first;  // by chunk, micro-batch, whether backward
    std::size_t end = plan_.nodes.size();
    for (std::size_t i = plan_.nodes.size(); i-- > 0;) {
      const Node& node = plan_.nodes[i];
      if (node.micro_batch < 0) {
        end = i;
        continue;
      }
      const bool backward = node.phase != Phase::forward && node.phase != Phase::evaluate;
      const int unit = plan_.place_of(node).unit;
      first[{chunks.at(static_cast<std::size_t>(unit)), node.micro_batch, backward}] = i;
    }
    begin_.assign(order_.size(), end);
    for (std::size_t p = order_.size(); p-- > 0;) {
      const ModelPass& pass = order_[p];
      const std::size_t next = p + 1 < order_.size() ? begin_[p + 1] : end;
      const auto at = first.find({pass.chunk, pass.micro_batch, pass.direction == Direction::backward});
      begin_[p] =
          pass.direction == Direction::weight_gradients || at == first.end() ? next : std::min(at->second, next);
    }
    for (std::size_t p = 0; p + 1 < order_.size(); ++p)
      if (order_[p].with_next) begin_[p + 1] = begin_[p];
  }

  // The beginning of the pass before this one, or of the pair of passes.
  std::size_t one_pass_ahead(std::size_t p) const {
    if (plan_.kind == PlanKind::evaluate) return begin_[p];  // run serially, where nothing goes on beside a receive
    const bool second = p > 0 && order_[p - 1].with_next;
    std::size_t before = second ? p - 1 : p;
    while (before > 0 && order_[before - 1].direction == Direction::weight_gradients) --before;
    return before == 0 ? 0 : begin_[before - 1];
  }

  void add(std::size_t p) {
    const ModelPass& pass = order_[p];
    const Chunk& chunk = module_.chunks.at(static_cast<std::size_t>(pass.chunk));
    const bool forward = pass.direction == Direction::forward;
    if (!forward && plan_.kind == PlanKind::evaluate) return;
    const ValueId from = forward ? chunk.in : chunk.d_out, to = forward ? chunk.out : chunk.d_in;
    // Segment s receives its input from s - 1, and sends the gradient of it there.
    const int peer_from = forward ? chunk.segment - 1 : chunk.segment + 1;
    const int peer_to = forward ? chunk.segment + 1 : chunk.segment - 1;
    if (from.valid()) {
      const BufferId buffer = buffer_of(from, pass.micro_batch);
      before_[one_pass_ahead(p)].push_back(made(pass, CollectiveKind::receive, buffer, peer_from, chunk.segment));
    }
    if (!to.valid()) return;
    const BufferId buffer = buffer_of(to, pass.micro_batch);
    const Node sent = made(pass, CollectiveKind::send, buffer, peer_to, chunk.segment);
    const std::optional<std::size_t> writer = last_writer(buffer);
    (writer ? after_[*writer] : before_[begin_[p]]).push_back(sent);  // else it goes on as it came
  }

  std::optional<std::size_t> last_writer(BufferId buffer) {
    if (writers_.empty()) {
      writers_.resize(plan_.buffers.size());
      for (std::size_t i = 0; i < plan_.nodes.size(); ++i)
        for (const BufferUse& use : plan_.uses_of(plan_.nodes[i]))
          if (use.access != Access::read) writers_[use.buffer.index()] = i;
    }
    return buffer.index() < writers_.size() ? writers_[buffer.index()] : std::nullopt;
  }

  BufferId buffer_of(ValueId value, int micro_batch) {
    const auto [at, is_new] = buffers_.try_emplace({value, micro_batch});
    if (is_new) at->second = plan_.add_buffer(value, micro_batch);
    return at->second;
  }

  Node made(const ModelPass& pass, CollectiveKind kind, BufferId buffer, int other_segment, int segment) {
    const bool forward = pass.direction == Direction::forward, sends = kind == CollectiveKind::send;
    NodeCollective c{kind, module_.layout.stages()};
    (sends ? c.send : c.receive) = buffer;
    c.bytes = plan_.value_of(buffer).bytes;
    c.peer = other_segment % module_.layout.stage_count();
    const int boundary = std::max(segment, other_segment);
    c.match = MatchId((static_cast<std::int64_t>(boundary) * plan_.micro_batches + pass.micro_batch) * 2 + !forward);
    const Lane lane = forward ? (sends ? Lane::pipe_out : Lane::pipe_in) : (sends ? Lane::back_out : Lane::back_in);
    const Phase phase = !forward                           ? Phase::backward
                        : plan_.kind == PlanKind::evaluate ? Phase::evaluate
                                                           : Phase::forward;
    const BufferUse use{buffer, sends ? Access::read : Access::write};
    return plan_.make_node(NodeKind::communicate, phase, lane, place(segment, forward, sends), pass.micro_batch,
                           std::span(&use, 1), std::span(&c, 1));
  }

  PlaceId place(int segment, bool forward, bool sends) {
    const auto [at, is_new] = places_.try_emplace({segment, forward, sends});
    if (is_new) {
      at->second = plan_.add_place(0, fmt::format("segment{}", segment), sends ? "send" : "receive");
    }
    return at->second;
  }

  Plan plan_;
  const Module& module_;
  const PassOrder& order_;
  std::map<std::pair<ValueId, std::int32_t>, BufferId> buffers_;
  std::map<std::tuple<int, bool, bool>, PlaceId> places_;
  std::vector<std::size_t> begin_;                   // by pass
  std::vector<std::optional<std::size_t>> writers_;  // by buffer
  std::vector<std::vector<Node>> before_, after_;    // by node of the given plan
};

}  // namespace

std::vector<int> chunks_of_units(const Module& module) {
  std::vector<int> chunks(static_cast<std::size_t>(module.units));
  for (const Piece& piece : module.pieces) chunks.at(static_cast<std::size_t>(piece.place.unit)) = piece.place.chunk;
  return chunks;
}

Plan transfer(const Plan& plan, const Module& module, const PassOrder& order) {
  return Transfers(plan, module, order).run();
}

}  // namespace weft
