#include "weft/plan/passes/expand.h"

#include <algorithm>
#include <map>

#include "weft/base/error.h"

namespace weft {

namespace {

StorageClass storage_of(ValueKind kind) {
  switch (kind) {
    case ValueKind::input:
      return StorageClass::input;
    case ValueKind::activation:
    case ValueKind::running:
    case ValueKind::before:
      return StorageClass::activation;
    case ValueKind::scratch:
      return StorageClass::scratch;
    case ValueKind::parameter:
      return StorageClass::weight;
    case ValueKind::parameter_gradient:
      return StorageClass::gradient;
    case ValueKind::constant:
      return StorageClass::constant;
    case ValueKind::step:
      return StorageClass::step;
    case ValueKind::state:
      return StorageClass::state;
    case ValueKind::output:
      return StorageClass::output;
    case ValueKind::gathered:
      return StorageClass::gathered;
    case ValueKind::partial_gradient:
      return StorageClass::partial;
  }
  WEFT_CHECK(false, "kind {}", static_cast<int>(kind));
}

bool of_micro_batch(StorageClass storage) {
  return storage == StorageClass::input || storage == StorageClass::activation || storage == StorageClass::scratch ||
         storage == StorageClass::output;
}

// Those that expansion makes nodes of; `recompute` adds its own.
std::uint8_t phases_of(const Piece& piece) {
  unsigned phases = 0;
  for (int phase = 0; phase < phase_count; ++phase)
    if (static_cast<Phase>(phase) != Phase::recompute && piece.code(static_cast<Phase>(phase))) phases |= 1u << phase;
  return static_cast<std::uint8_t>(phases);
}

class Expansion {
 public:
  Expansion(const Module& module, const PlanOptions& options) : module_(module), options_(options) {
    plan_.kind = options.kind;
    plan_.micro_batches = options.micro_batches;
    plan_.groups = module.layout.group_names();
    for (const Value& value : module.values) plan_.values.push_back(info_of(value));
    for (const auto* list : {&module.pieces, &module.updates})
      for (const Piece& piece : *list)
        plan_.places.push_back({piece.place.layer + "." + piece.place.piece, piece.place.layer, piece.place.piece,
                                piece.place.unit, phases_of(piece), piece.place.section, piece.place.depth});
    of_step_.resize(module.values.size());
    of_micro_batch_.resize(static_cast<std::size_t>(options.micro_batches) * module.values.size());
  }

  void add(const ModelPass& pass) {
    using Direction = ModelPass::Direction;
    if (pass.direction == Direction::backward)
      backward_number_.try_emplace({pass.chunk, pass.micro_batch}, static_cast<std::int32_t>(backward_number_.size()));
    const std::size_t pieces = module_.pieces.size();
    for (std::size_t i = 0; i < pieces; ++i) {
      const std::size_t at = pass.direction == Direction::forward ? i : pieces - 1 - i;
      const Piece& piece = module_.pieces[at];
      if (piece.place.chunk != pass.chunk) continue;
      const auto add = [&](Phase phase) { add_node(at, piece, phase, pass.micro_batch); };
      switch (pass.direction) {
        case Direction::forward:
          add(Phase::forward);
          add(Phase::evaluate);
          break;
        case Direction::backward:
          add(Phase::backward);
          if (!pass.weights_later || stays(piece)) add(Phase::weight_gradient);
          break;
        case Direction::weight_gradients:
          if (!stays(piece)) add(Phase::weight_gradient);
          break;
      }
    }
  }
  void update() {
    for (std::size_t i = 0; i < module_.updates.size(); ++i)
      add_node(module_.pieces.size() + i, module_.updates[i], Phase::update, -1);
  }
  Plan take() {
    number_contributions();
    return std::move(plan_);
  }

 private:
  ValueInfo info_of(const Value& v) const {
    const std::int64_t elements = std::max(v.shape.elements(), v.room);
    ValueInfo info{
        v.name, storage_of(v.kind), v.dtype, v.shape, elements * static_cast<std::int64_t>(size_of(v.dtype)), v.tensor};
    info.summed_over = v.summed_over;
    info.exchanged_over = v.exchanged_over;
    info.counts = v.counts;
    info.given_by_host = v.given_by_host;
    info.read_by_host = v.read_by_host;
    info.running = v.kind == ValueKind::running;
    info.part = v.part;
    if (v.kind == ValueKind::parameter_gradient)
      info.summed_over = info.replicas = module_.parameters[v.tensor.index()].placement.replicas;
    if (v.kind == ValueKind::partial_gradient) info.replicas = v.summed_over;
    return info;
  }

  // A weight that forward passes add to as well, one that is both embedding and head, must get the contributions of one
  // micro-batch before the next one's forward pass.
  bool stays(const Piece& piece) const {
    const auto adds = [](const PieceCode& code, ValueId value) {
      return std::any_of(code.uses.begin(), code.uses.end(),
                         [&](const ValueUse& use) { return use.value == value && use.access == Access::add; });
    };
    return std::any_of(piece.weight_gradient.uses.begin(), piece.weight_gradient.uses.end(), [&](const ValueUse& use) {
      return use.access == Access::add && std::any_of(module_.pieces.begin(), module_.pieces.end(),
                                                      [&](const Piece& p) { return adds(p.forward, use.value); });
    });
  }

  BufferId buffer_of(ValueId value, int micro_batch) {
    const Value& made = module_.value(value);
    const int first = micro_batch / options_.block * options_.block;  // of the block
    if (made.kind == ValueKind::before)
      return first == 0 ? buffer_of(made.initial, micro_batch) : buffer_of(made.running, first - options_.block);
    if (made.kind == ValueKind::running) micro_batch = first;
    BufferId& id = slot_of(value, micro_batch);
    if (!id.valid()) {
      id = BufferId(std::ssize(plan_.buffers));
      plan_.buffers.push_back({value, in_micro_batch(value, micro_batch) ? micro_batch : -1});
    }
    return id;
  }
  // Updates may have scratch too.
  bool in_micro_batch(ValueId value, int micro_batch) const {
    return micro_batch >= 0 &&
           (of_micro_batch(plan_.values[value.index()].storage) || module_.value(value).each_micro_batch);
  }
  BufferId& slot_of(ValueId value, int micro_batch) {
    return in_micro_batch(value, micro_batch)
               ? of_micro_batch_[static_cast<std::size_t>(micro_batch) * module_.values.size() + value.index()]
               : of_step_[value.index()];
  }

  // Does nothing if the piece or plans of this kind lack the phase.
  void add_node(std::size_t index, const Piece& piece, Phase phase, int micro_batch) {
    const PieceCode& code = piece.code(phase);
    if (!code || !has_phase(plan_.kind, phase)) return;
    Node node;
    node.kind = code.collectives.empty() ? NodeKind::compute : NodeKind::communicate;
    node.phase = phase;
    node.lane = piece.lane;
    node.place = PlaceId(static_cast<std::int64_t>(index));
    node.piece = PieceId(static_cast<std::int64_t>(index));
    node.micro_batch = micro_batch;
    node.first_use = static_cast<std::int32_t>(plan_.uses.size());
    node.uses = static_cast<std::int32_t>(code.uses.size());
    for (const ValueUse& use : code.uses)  // scratch lives within one node: every node has its own
      if (plan_.values[use.value.index()].storage == StorageClass::scratch) slot_of(use.value, micro_batch) = {};
    for (const ValueUse& use : code.uses) {
      BufferUse made{buffer_of(use.value, micro_batch), use.access, -1};
      if (use.access == Access::add) ++plan_.buffers[made.buffer.index()].contributions;
      plan_.uses.push_back(made);
    }
    node.first_collective = static_cast<std::int32_t>(plan_.collectives.size());
    node.collectives = static_cast<std::int32_t>(code.collectives.size());
    for (const Collective& c : code.collectives) {
      const auto buffer = [&](ValueId value) { return value.valid() ? buffer_of(value, micro_batch) : BufferId{}; };
      NodeCollective made{
          c.kind, c.group, buffer(c.send), buffer(c.receive), buffer(c.send_counts), buffer(c.receive_counts)};
      made.bytes = expected_bytes(c);
      plan_.collectives.push_back(made);
    }
    plan_.nodes.push_back(node);
  }

  std::int64_t expected_bytes(const Collective& c) const {
    const double in_use = module_.value(c.send).in_use;
    return static_cast<std::int64_t>(in_use * static_cast<double>(plan_.values[c.send.index()].bytes));
  }

  // The `add`s to a buffer are numbered by micro-batch, then by consumer: forward before backward, each in the order in
  // which its pass visits the pieces. So the numbers do not depend on the order of passes. A block of micro-batches
  // counts as one: all its forward passes come before its backward passes. Where several chunks add to one buffer, what
  // counts is the place of the chunk's backward pass among all, which is the same in every order of these chunks.
  std::int32_t turn_of(const Node& node) const {
    if (options_.block > 1 || node.micro_batch < 0) return node.micro_batch / options_.block;
    const auto at = backward_number_.find({module_.piece(node.piece).place.chunk, node.micro_batch});
    return at == backward_number_.end() ? node.micro_batch : at->second;
  }
  void number_contributions() {
    struct Contribution {
      std::int32_t buffer, block, back, micro_batch, visit, use;
      auto operator<=>(const Contribution&) const = default;
    };
    std::vector<Contribution> all;
    for (const Node& node : plan_.nodes) {
      const auto pieces = static_cast<std::int32_t>(module_.pieces.size());
      const bool back = node.phase == Phase::backward || node.phase == Phase::weight_gradient;
      const std::int32_t visit =
          back ? 2 * (pieces - node.place.value) + (node.phase == Phase::weight_gradient) : node.place.value;
      for (std::int32_t u = node.first_use; u < node.first_use + node.uses; ++u)
        if (const BufferUse& use = plan_.uses[static_cast<std::size_t>(u)]; use.access == Access::add)
          all.push_back({use.buffer.value, turn_of(node), back, node.micro_batch, visit, u});
    }
    std::sort(all.begin(), all.end());
    std::int32_t number = 0;
    for (std::size_t i = 0; i < all.size(); ++i) {
      number = i > 0 && all[i].buffer == all[i - 1].buffer ? number + 1 : 0;
      plan_.uses[static_cast<std::size_t>(all[i].use)].contribution = number;
    }
  }

  const Module& module_;
  const PlanOptions& options_;
  Plan plan_;
  std::vector<BufferId> of_step_, of_micro_batch_;
  std::map<std::pair<int, int>, std::int32_t> backward_number_;  // of (chunk, micro-batch): its turn among all
};

}  // namespace

Plan expand(const Module& module, const PassOrder& order, const PlanOptions& options) {
  Expansion expansion(module, options);
  for (const ModelPass& pass : order) expansion.add(pass);
  expansion.update();
  return expansion.take();
}

}  // namespace weft
