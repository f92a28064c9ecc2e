// Ranks as threads of one process. A cluster holds what they share; every rank's thread uses its own world. Collectives
// copy straight from the peers' buffers once all have come, and return when nobody reads the caller's buffers any more,
// also when they throw. In the memory of GPUs, one or several, the copies are queued on the caller's stream, behind what
// the peers queued before their calls, and what follows on it waits until the peers have read: calls return when all is
// queued.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "weft/comm/local/network.h"
#include "weft/comm/world.h"

namespace weft {

struct LocalOptions {
  double timeout = 600;  // seconds
  std::optional<EmulatedNetwork> network;
};

class LocalCluster {
 public:
  explicit LocalCluster(int size, const LocalOptions& options = {});
  ~LocalCluster();
  LocalCluster(const LocalCluster&) = delete;
  LocalCluster& operator=(const LocalCluster&) = delete;

  int size() const;
  World& world(RankId rank);

  // Runs body(world) on a thread for every rank and returns when all have ended. An exception on one rank aborts the
  // others; the one that came first is thrown again here, as it was. After that the cluster is good for nothing.
  void run(const std::function<void(World&)>& body);

 private:
  std::shared_ptr<class LocalState> state_;
  std::vector<std::unique_ptr<World>> worlds_;
};

}  // namespace weft
