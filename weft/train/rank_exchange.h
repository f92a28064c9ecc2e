// What ranks tell each other between steps. It goes over host memory, beside the communicators of plans.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "weft/comm/world.h"

namespace weft {

// Every call is made by all ranks, in the same order. PeerError when another rank has failed.
class RankExchange {
 public:
  // world: null for one rank. name: of the group, for messages.
  explicit RankExchange(World* world, const std::string& name = "between steps");

  int ranks() const { return world_ ? world_->size() : 1; }
  // The same number of words from every rank, in the order of ranks.
  std::vector<std::int64_t> gather(std::span<const std::int64_t> words) const;
  // The first rank gets the bytes of rank `from`, of the same number; on other ranks they stay as they are.
  void send_to_first(RankId from, std::span<std::byte> bytes) const;
  // All ranks get the bytes of rank `from`.
  void spread(RankId from, std::span<std::byte> bytes) const;
  void wait_for_all() const;

 private:
  World* world_;
  std::unique_ptr<Communicator> group_;
};

}  // namespace weft
