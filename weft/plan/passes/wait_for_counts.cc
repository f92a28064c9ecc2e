#include "weft/plan/passes/wait_for_counts.h"

#include <map>

namespace weft {

namespace {

class CountWaits {
 public:
  CountWaits(const Plan& plan, const Layout& layout) : plan_(plan), layout_(layout), out_(plan) {
    out_.nodes.clear();
    out_.uses.clear();
    out_.collectives.clear();
  }

  Plan run() {
    for (const Node& node : plan_.nodes) add(node);
    return std::move(out_);
  }

 private:
  void add(const Node& node) {
    const auto uses = plan_.uses_of(node);
    const auto collectives = plan_.collectives_of(node);
    std::vector<BufferUse> used(uses.begin(), uses.end());
    std::vector<NodeCollective> communication(collectives.begin(), collectives.end());
    bool added = false;
    for (NodeCollective& c : communication) {
      if (!c.send_counts.valid()) continue;
      if (!on_host_.contains(c.send_counts)) insert_wait(node, c);
      c.host_send_counts = on_host_.at(c.send_counts);
      c.host_receive_counts = on_host_.at(c.receive_counts);
      if (!added) used.insert(used.end(), {{c.host_send_counts}, {c.host_receive_counts}});
      added = true;  // all exchanges of a node use one pair
    }
    Node made = out_.make_node(node.kind, node.phase, node.lane, node.place, node.micro_batch, used, communication);
    made.piece = node.piece;
    made.carried = node.carried;
    out_.nodes.push_back(made);
  }

  void insert_wait(const Node& node, const NodeCollective& c) {
    std::vector<BufferUse> used;
    for (BufferId counts : {c.send_counts, c.receive_counts}) used.push_back({counts});
    for (BufferId counts : {c.send_counts, c.receive_counts}) {
      const ValueId value = plan_.buffers[counts.index()].value;
      const auto [at, is_new] = values_.try_emplace(value);
      if (is_new) {
        const std::int64_t peers = layout_.size_of(c.group);
        at->second = out_.add_value({plan_.values[value.index()].name + "_on_host",
                                     StorageClass::host,
                                     DType::i64,
                                     {peers},
                                     peers * static_cast<std::int64_t>(sizeof(std::int64_t))});
      }
      on_host_[counts] = out_.add_buffer(at->second, plan_.buffers[counts.index()].micro_batch);
      used.push_back({on_host_[counts], Access::write});
    }
    const PlaceInfo& place = plan_.place_of(node);
    const auto [at, is_new] = places_.try_emplace(place.layer);
    if (is_new) {
      at->second = out_.add_place(place.unit, place.layer, "wait");
      out_.places.back().depth = place.depth;
    }
    out_.nodes.push_back(
        out_.make_node(NodeKind::wait_counts, node.phase, node.lane, at->second, node.micro_batch, used));
  }

  const Plan& plan_;
  const Layout& layout_;
  Plan out_;
  std::map<BufferId, BufferId> on_host_;  // counts -> their copies
  std::map<ValueId, ValueId> values_;
  std::map<std::string, PlaceId> places_;  // by layer
};

}  // namespace

Plan wait_for_counts(const Plan& plan, const Layout& layout) { return CountWaits(plan, layout).run(); }

}  // namespace weft
