// The communicators of one rank: one for every (group, lane) that a plan communicates on, so that no lane waits for
// another. Between stages, where what leaves on one lane arrives on another, neighbouring stages send over different ones:
// so a rank uses each of them on one lane only.
#pragma once

#include <map>
#include <memory>
#include <set>
#include <vector>

#include "weft/comm/world.h"
#include "weft/grid/layout.h"
#include "weft/plan/plan.h"

namespace weft {

bool between_stages(Lane lane);

class RankGroups {
 public:
  // `add` is collective: the members of a group add the same plans in the same order.
  // device: whose memory the plans use.
  RankGroups(World& world, Device& device, const Layout& layout);
  void add(const Plan& plan);
  Communicator& get(const Node& node, const NodeCollective& collective) const;
  std::vector<Communicator*> used_by(const Plan& plan) const;  // each once
  World& world() const { return world_; }
  const Layout& layout() const { return layout_; }

 private:
  struct Key {
    GroupId group;
    Lane lane = Lane::compute;
    int channel = 0;
    auto operator<=>(const Key&) const = default;
  };
  static constexpr int channels = 3;  // of senders: of even, of odd number, and the last of an odd number of them
  Key key_of(const Node& node, const NodeCollective& collective) const;
  std::set<Key> needed_by(const Plan& plan) const;

  World& world_;
  Device& device_;
  Layout layout_;
  std::map<Key, std::unique_ptr<Communicator>> groups_;
};

}  // namespace weft
