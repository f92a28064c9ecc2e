// What travels between the stages of a pipeline, and the order of a stage's passes. The other stages run their good plans.
#include <fmt/format.h>

#include "tests/plan/check/damage_edit.h"

namespace weft::damage {

namespace {

std::vector<std::size_t> transfers(const Plan& plan, std::optional<CollectiveKind> kind = {}) {
  return find_nodes(plan, [&](const Node& node) {
    const auto list = plan.collectives_of(node);
    return !list.empty() && is_transfer(list.front().kind) && (!kind || list.front().kind == *kind);
  });
}
NodeCollective transfer_of(const Plan& plan, std::size_t node) { return collectives_of(plan, node).front(); }

// A transfer and another one of the same communicator, direction and peer.
std::optional<std::pair<std::size_t, std::size_t>> pair_of(const Plan& plan, CollectiveKind kind, Dice& dice) {
  const std::vector<std::size_t> nodes = transfers(plan, kind);
  if (nodes.empty()) return {};
  const std::size_t first = any(nodes, dice);
  for (std::size_t other : nodes)
    if (other > first && plan.nodes[other].lane == plan.nodes[first].lane &&
        transfer_of(plan, other).peer == transfer_of(plan, first).peer)
      return std::pair(first, other);
  return {};
}

bool send_dropped(const GoodPlan& good, Dice& dice, Damage& d) {
  const std::vector<std::size_t> nodes = transfers(good.plan, CollectiveKind::send);
  if (nodes.empty()) return false;
  const std::size_t node = any(nodes, dice);
  d.plan.nodes.erase(d.plan.nodes.begin() + static_cast<std::ptrdiff_t>(node));
  d.messages = {"is written and never read", "has no send for what is received here", "meets a receive with match"};
  return true;
}
bool receive_dropped(const GoodPlan& good, Dice& dice, Damage& d) {
  const std::vector<std::size_t> nodes = transfers(good.plan, CollectiveKind::receive);
  if (nodes.empty()) return false;
  const std::size_t node = any(nodes, dice);
  d.plan.nodes.erase(d.plan.nodes.begin() + static_cast<std::ptrdiff_t>(node));
  d.names = {good.plan.name_of(transfer_of(good.plan, node).receive)};
  d.messages = {"read before it is written", "added to before it is written"};
  return true;
}
bool sent_twice(const GoodPlan& good, Dice& dice, Damage& d) {
  const std::vector<std::size_t> nodes = transfers(good.plan, CollectiveKind::send);
  if (nodes.empty()) return false;
  const std::size_t node = any(nodes, dice);
  d.plan.nodes.insert(d.plan.nodes.begin() + static_cast<std::ptrdiff_t>(node), good.plan.nodes[node]);
  d.names = {name(good.plan, node)};
  d.messages = {"is used by two transfers between the same ranks"};
  return true;
}
bool matches_swapped(const GoodPlan& good, Dice& dice, Damage& d) {
  const auto kind = dice.yes() ? CollectiveKind::send : CollectiveKind::receive;
  const auto pair = pair_of(good.plan, kind, dice);
  if (!pair) return false;
  std::swap(d.plan.collectives[size(good.plan.nodes[pair->first].first_collective)].match,
            d.plan.collectives[size(good.plan.nodes[pair->second].first_collective)].match);
  d.names = {name(good.plan, pair->first)};
  d.messages = {"meets a receive with match"};
  return true;
}
// What arrives first goes where the second should.
bool receives_swapped(const GoodPlan& good, Dice& dice, Damage& d) {
  const auto pair = pair_of(good.plan, CollectiveKind::receive, dice);
  if (!pair) return false;
  // Where the later one stands, the earlier one's user may have run; so the later one comes early.
  move_before(d.plan, pair->second, pair->first);
  d.messages = {"meets a receive with match"};
  d.names = {name(good.plan, pair->second)};
  return true;
}
bool sent_elsewhere(const GoodPlan& good, Dice& dice, Damage& d) {
  const std::vector<std::size_t> nodes = transfers(good.plan);
  if (nodes.empty() || good.origin.stages < 3) return false;
  const std::size_t node = any(nodes, dice);
  NodeCollective& c = d.plan.collectives[size(good.plan.nodes[node].first_collective)];
  for (int peer = 0; peer < good.origin.stages; ++peer)
    if (peer != c.peer && peer != good.stage) {
      c.peer = peer;
      break;
    }
  // A later transfer may be the first that does not fit.
  d.messages = {"for what is received here", "for what is sent here", "meets a receive with match"};
  return true;
}
bool unknown_peer(const GoodPlan& good, Dice& dice, Damage& d) {
  const std::vector<std::size_t> nodes = transfers(good.plan);
  if (nodes.empty()) return false;
  const std::size_t node = any(nodes, dice);
  d.plan.collectives[size(good.plan.nodes[node].first_collective)].peer = -1;
  d.names = {name(good.plan, node)};
  d.messages = {"names no peer or no match"};
  return true;
}
bool lane_of_other_direction(const GoodPlan& good, Dice& dice, Damage& d) {
  const std::vector<std::size_t> nodes = transfers(good.plan);
  if (nodes.empty()) return false;
  const std::size_t node = any(nodes, dice);
  Lane& lane = d.plan.nodes[node].lane;
  const bool forward = lane == Lane::pipe_in || lane == Lane::pipe_out;
  const bool sends = transfer_of(good.plan, node).kind == CollectiveKind::send;
  lane = forward ? (sends ? Lane::pipe_in : Lane::pipe_out) : (sends ? Lane::back_in : Lane::back_out);
  d.names = {name(good.plan, node)};
  d.messages = {sends ? "only receives" : "only sends"};
  return true;
}
// Half of the rows: what the peer sends does not fit.
bool sizes_differ(const GoodPlan& good, Dice& dice, Damage& d) {
  const std::vector<std::size_t> nodes = transfers(good.plan, CollectiveKind::receive);
  if (nodes.empty()) return false;
  const std::size_t node = any(nodes, dice);
  const BufferId buffer = transfer_of(good.plan, node).receive;
  const ValueId value = good.plan.buffers[buffer.index()].value;
  ValueInfo& info = d.plan.values[value.index()];
  info.shape = {info.shape[0] / 2, info.shape[1]};
  info.bytes /= 2;
  d.messages = {" is sent to "};
  return true;
}
bool sent_before_it_is_made(const GoodPlan& good, Dice& dice, Damage& d) {
  const std::vector<std::size_t> nodes = transfers(good.plan, CollectiveKind::send);
  if (nodes.empty()) return false;
  const std::size_t node = any(nodes, dice);
  const BufferId buffer = transfer_of(good.plan, node).send;
  const std::vector<At> writers = find_uses(
      good.plan, [&](const Node&, const BufferUse& use) { return use.buffer == buffer && use.access != Access::read; });
  if (writers.empty()) return false;
  move_before(d.plan, node, writers.back().node);
  d.names = {name(good.plan, node)};
  d.messages = {"read before", "before its last contribution", "is read between its contributions"};
  return writers.size() == 1;
}
// A stage that has the norm, and whose head is elsewhere.
bool norm_without_head(const GoodPlan& good, Dice& dice, Damage& d) {
  const std::vector<std::size_t> nodes =
      find_nodes(good.plan, [&](const Node& node) { return node.phase == Phase::forward && node.piece.valid(); });
  for (const PlaceInfo& place : good.plan.places)
    if (place.section == Section::final_norm || place.section == Section::head) return false;
  if (nodes.empty()) return false;
  const std::size_t node = any(nodes, dice);
  d.plan.places[good.plan.nodes[node].place.index()].section = Section::final_norm;
  d.names = {name(good.plan, node)};
  d.messages = {"stands on a stage without the head"};
  return true;
}
// The first stage wants the gradient of micro-batch 0 before it sends micro-batch 1, which a stage that first runs all
// forward passes wants before that.
bool cycle_through_two_stages(const GoodPlan& good, Dice&, Damage& d) {
  if (good.stage != 0 || good.origin.options.micro_batches < 2) return false;
  if (good.all->steps().front()->module.chunks.size() > 1) return false;
  // The next stage must want a second micro-batch before it returns the first one's gradient.
  const Plan& next = good.all->steps().at(1)->plan;
  std::size_t wanted = next.nodes.size(), sent = 0;
  for (std::size_t i = 0; i < next.nodes.size(); ++i) {
    const Node& node = next.nodes[i];
    if (node.lane == Lane::compute && node.phase == Phase::forward && node.micro_batch == 1 &&
        wanted == next.nodes.size())
      wanted = i;
    if (node.lane == Lane::compute && node.phase == Phase::backward && node.micro_batch == 0) sent = i;
  }
  bool travels = false;
  for (std::size_t node : transfers(good.plan)) travels |= good.plan.nodes[node].lane == Lane::back_in;
  if (wanted > sent || !travels || good.origin.options.weave) return false;
  const auto turn = [](const Node& n) {
    return n.micro_batch < 0 ? std::pair(1 << 20, 0) : std::pair<int, int>(n.micro_batch, n.phase != Phase::forward);
  };
  std::stable_sort(d.plan.nodes.begin(), d.plan.nodes.end(),
                   [&](const Node& a, const Node& b) { return turn(a) < turn(b); });
  d.messages = {"wait for each other, and none can proceed"};
  return true;
}

}  // namespace

std::vector<DamageKind> of_stages() {
  return {
      {"send dropped", send_dropped, 40},
      {"receive dropped", receive_dropped, 40},
      {"sent twice", sent_twice, 40},
      {"matches swapped", matches_swapped, 40},
      {"receives swapped", receives_swapped, 20},
      {"sent elsewhere", sent_elsewhere, 15},
      {"unknown peer", unknown_peer, 40},
      {"lane of the other direction", lane_of_other_direction, 40},
      {"sizes differ between stages", sizes_differ, 40},
      {"sent before it is made", sent_before_it_is_made, 20},
      {"final norm without head", norm_without_head, 20},
      {"cycle through two stages", cycle_through_two_stages, 2},
  };
}

}  // namespace weft::damage
