#include "weft/plan/passes/recompute.h"

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <utility>

#include <fmt/format.h>

#include "weft/base/error.h"

namespace weft {

namespace {

using Stretch = std::pair<int, int>;  // segment or MTP depth, number in it

std::optional<Stretch> stretch_of(const PiecePlace& place, const Recomputation& how) {
  const ItemPlace& item = place.item;
  if (item.part < 0) return {};
  switch (how.kind) {
    case Recomputation::Kind::none:
      return {};
    case Recomputation::Kind::uniform:
      return Stretch{item.part, item.number / how.items};
    case Recomputation::Kind::block:
      if (item.number >= how.items) return {};
      return Stretch{item.part, item.number};
    case Recomputation::Kind::modules:
      return Stretch{item.part, place.physical};  // a layer
  }
  return {};
}

bool is_backward(const Node& node) { return node.phase == Phase::backward || node.phase == Phase::weight_gradient; }

class Recomputing {
 public:
  Recomputing(const Plan& plan, const Module& module, const Recomputation& how)
      : plan_(plan), module_(module), how_(how), before_(plan.nodes.size()) {
    for (const Node& node : plan.nodes)
      if (node.kind == NodeKind::wait_counts)
        for (const BufferUse& use : plan.uses_of(node))
          if (use.access == Access::read) waited_for_.insert(use.buffer);
  }

  Plan run() {
    std::map<std::pair<int, Stretch>, Pass> passes;
    for (std::size_t i = 0; i < plan_.nodes.size(); ++i) {
      const Node& node = plan_.nodes[i];
      if (!node.piece.valid() || node.micro_batch < 0) continue;
      if (is_backward(node) && node.lane == Lane::exchange)
        first_exchange_.try_emplace({node.micro_batch, plan_.place_of(node).unit}, i);
      const std::optional<Stretch> stretch = stretch_of(module_.piece(node.piece).place, how_);
      if (!stretch) continue;
      Pass& pass = passes[{node.micro_batch, *stretch}];
      if (node.phase == Phase::forward) pass.forward.push_back(i);
      if (is_backward(node)) pass.backward.push_back(i);
    }
    for (const auto& [key, pass] : passes) add(pass);
    std::vector<Node> nodes;
    for (std::size_t i = 0; i < plan_.nodes.size(); ++i) {
      nodes.insert(nodes.end(), before_[i].begin(), before_[i].end());
      nodes.push_back(plan_.nodes[i]);
    }
    plan_.nodes = std::move(nodes);
    drop_what_nobody_reads();
    return std::move(plan_);
  }

 private:
  // A stretch in one micro-batch: its nodes, by their places in the list.
  struct Pass {
    std::vector<std::size_t> forward, backward;
  };
  // A node of the forward pass, or a part of its piece, that can run again.
  struct Source {
    std::size_t node = 0;
    int part = -1;
    const PieceCode* code = nullptr;
    std::vector<BufferUse> uses;  // of the code, then those that passes have added to the node
    bool needed = false;
    std::size_t at = 0;  // where it runs again: before that node
  };

  // What of the node may run again.
  std::vector<Source> sources_of(std::size_t index) const {
    const Piece& piece = module_.piece(plan_.nodes[index].piece);
    const auto chosen = [&](RecomputeModules modules) {
      return how_.kind != Recomputation::Kind::modules || (modules & how_.modules) != 0;
    };
    std::vector<Source> sources;
    for (std::size_t part = 0; part < piece.parts.size(); ++part)
      if (chosen(piece.parts[part].modules)) sources.push_back(source_of(index, static_cast<int>(part)));
    if (piece.parts.empty() && piece.code(Phase::recompute) && chosen(piece.modules))
      sources.push_back(source_of(index, -1));
    return sources;
  }

  Source source_of(std::size_t index, int part) const {
    const Node& node = plan_.nodes[index];
    const Piece& piece = module_.piece(node.piece);
    const std::vector<ValueUse>& forward = piece.forward.uses;
    const auto known = plan_.uses_of(node);
    Source source{index, part, &piece.code(Phase::recompute, part)};
    for (const ValueUse& use : source.code->uses) {
      const auto at = std::find_if(forward.begin(), forward.end(), [&](const auto& o) { return o.value == use.value; });
      WEFT_CHECK(at != forward.end(), "{} is recomputed from {}, which forward does not use", plan_.name_of(node),
                 plan_.values[use.value.index()].name);
      source.uses.push_back({known[static_cast<std::size_t>(at - forward.begin())].buffer, use.access});
    }
    source.uses.insert(source.uses.end(), known.begin() + std::ssize(forward), known.end());
    return source;
  }

  void add(const Pass& pass) {
    sources_.clear();
    source_of_.clear();
    first_user_.clear();
    again_.clear();
    for (const std::size_t i : pass.forward)
      for (Source& source : sources_of(i)) {
        for (const BufferUse& use : source.uses)
          if (use.access == Access::write && can_drop(use.buffer)) source_of_[use.buffer] = sources_.size();
        sources_.push_back(std::move(source));
      }
    for (const std::size_t i : pass.backward)
      for (const BufferUse& use : plan_.uses_of(plan_.nodes[i]))
        if (use.access == Access::read) need(use.buffer, i);
    place();
    for (const Source& source : sources_)
      if (source.needed) before_[source.at].push_back(node_of(source));
    for (const std::size_t i : pass.backward) use_again(plan_.nodes[i]);
  }

  bool can_drop(BufferId buffer) const {
    return plan_.value_of(buffer).storage == StorageClass::activation && !waited_for_.contains(buffer);
  }

  // A node at `user`, or what runs again before it, reads the buffer: if the stretch has written it, it must be there again.
  void need(BufferId buffer, std::size_t user) {
    const auto at = source_of_.find(buffer);
    if (at == source_of_.end()) return;
    const auto [first, is_new] = first_user_.try_emplace(buffer, user);
    first->second = std::min(first->second, user);
    if (!is_new) return;
    const Buffer& of = plan_.buffers[buffer.index()];
    again_[buffer] = plan_.add_buffer(of.value, of.micro_batch, of.instance + 1);
    Source& source = sources_[at->second];
    if (std::exchange(source.needed, true)) return;
    for (const BufferUse& use : source.uses)
      if (use.access == Access::read) need(use.buffer, user);
  }

  // From the last to the first: users are placed before what they read.
  void place() {
    for (std::size_t s = sources_.size(); s-- > 0;) {
      Source& source = sources_[s];
      if (!source.needed) continue;
      const Node& node = plan_.nodes[source.node];
      source.at = plan_.nodes.size();
      for (const BufferUse& use : source.uses)
        if (const auto user = first_user_.find(use.buffer); use.access == Access::write && user != first_user_.end())
          source.at = std::min(source.at, user->second);
      if (node.lane == Lane::exchange)
        if (const auto at = first_exchange_.find({node.micro_batch, plan_.place_of(node).unit});
            at != first_exchange_.end())
          source.at = std::min(source.at, at->second);
      for (const BufferUse& use : source.uses)
        if (const auto user = first_user_.find(use.buffer); use.access == Access::read && user != first_user_.end())
          user->second = std::min(user->second, source.at);
    }
  }

  Node node_of(const Source& source) {
    const Node like = plan_.nodes[source.node];
    std::vector<BufferUse> uses = source.uses;
    std::map<BufferId, BufferId> own;  // what nobody reads
    for (BufferUse& use : uses) {
      const Buffer of = plan_.buffers[use.buffer.index()];
      const BufferId was = use.buffer;
      if (const auto at = again_.find(was); at != again_.end()) {
        use.buffer = at->second;
      } else if (use.access == Access::write) {
        const bool scratch = plan_.value_of(was).storage == StorageClass::scratch;
        use.buffer = own[was] = plan_.add_buffer(scratch ? of.value : unread(of.value), of.micro_batch);
      }
    }
    const auto known = plan_.collectives_of(like);
    std::vector<NodeCollective> collectives(known.begin(), known.end());
    for (NodeCollective& c : collectives)
      for (BufferId* buffer : {&c.send, &c.receive})
        if (const auto at = again_.find(*buffer); at != again_.end())
          *buffer = at->second;
        else if (const auto other = own.find(*buffer); other != own.end())
          *buffer = other->second;
    const PlaceId place = place_of(like, source.part);
    Node node = plan_.make_node(like.kind, Phase::recompute, like.lane, place, like.micro_batch, uses, collectives);
    node.piece = like.piece;
    node.part = source.part;
    return node;
  }

  // A part has a place of its own: "main.0*.mix.core".
  PlaceId place_of(const Node& like, int part) {
    PlaceId place = like.place;
    if (part >= 0) {
      const auto [at, is_new] = places_.try_emplace({like.place, part});
      if (is_new) {
        const PlaceInfo of = plan_.place_of(like);
        const PiecePart& own = module_.piece(like.piece).parts[static_cast<std::size_t>(part)];
        at->second = plan_.add_place(of.unit, of.layer, fmt::format("{}.{}", of.piece, own.name));
        plan_.places.back().section = of.section;
        plan_.places.back().depth = of.depth;
      }
      place = at->second;
    }
    plan_.places[place.index()].phases |= static_cast<std::uint8_t>(1u << static_cast<unsigned>(Phase::recompute));
    return place;
  }

  void use_again(const Node& node) {
    const auto change = [&](BufferId& buffer) {
      if (const auto at = again_.find(buffer); at != again_.end()) buffer = at->second;
    };
    for (std::int32_t u = 0; u < node.uses; ++u) {
      BufferUse& use = plan_.uses[static_cast<std::size_t>(node.first_use + u)];
      if (use.access == Access::read) change(use.buffer);
    }
    for (std::int32_t c = 0; c < node.collectives; ++c)
      change(plan_.collectives[static_cast<std::size_t>(node.first_collective + c)].send);
    for (const auto& [was, now] : again_) replaced_.insert(was);
  }

  // The same value as scratch: a node must write it, and nobody reads it.
  ValueId unread(ValueId value) {
    const auto [at, is_new] = unread_.try_emplace(value);
    if (is_new) {
      ValueInfo info = plan_.values[value.index()];
      info.name = fmt::format("unread({})", info.name);
      info.storage = StorageClass::scratch;
      at->second = plan_.add_value(std::move(info));
    }
    return at->second;
  }

  void drop_what_nobody_reads() {
    std::set<BufferId> read;
    for (const Node& node : plan_.nodes)
      for (const BufferUse& use : plan_.uses_of(node))
        if (use.access == Access::read) read.insert(use.buffer);
    for (const BufferId buffer : replaced_)
      if (!read.contains(buffer)) plan_.buffers[buffer.index()].value = unread(plan_.buffers[buffer.index()].value);
  }

  Plan plan_;
  const Module& module_;
  const Recomputation& how_;
  std::set<BufferId> waited_for_;                              // counts that the host has waited for
  std::map<std::pair<int, int>, std::size_t> first_exchange_;  // of the backward pass of a micro-batch and unit
  std::vector<std::vector<Node>> before_;                      // by node of the given plan
  std::map<ValueId, ValueId> unread_;
  std::map<std::pair<PlaceId, int>, PlaceId> places_;  // of parts
  std::set<BufferId> replaced_;                        // of the forward pass, which backward no longer reads
  // Of the present pass:
  std::vector<Source> sources_;
  std::map<BufferId, std::size_t> source_of_;   // which source writes it
  std::map<BufferId, std::size_t> first_user_;  // of what is computed again
  std::map<BufferId, BufferId> again_;          // and its new instance
};

}  // namespace

Plan recompute(const Plan& plan, const Module& module, const Recomputation& how) {
  return Recomputing(plan, module, how).run();
}

std::vector<int> units_of_passes(const Plan& plan) {
  std::vector<int> units(plan.nodes.size());
  std::vector<int> backward(static_cast<std::size_t>(plan.micro_batches));
  for (std::size_t i = plan.nodes.size(); i-- > 0;) {
    const Node& node = plan.nodes[i];
    units[i] = plan.place_of(node).unit;
    if (node.micro_batch < 0) continue;
    int& next = backward[static_cast<std::size_t>(node.micro_batch)];
    if (is_backward(node)) next = units[i];
    if (node.phase == Phase::recompute) units[i] = next;
  }
  return units;
}

}  // namespace weft
