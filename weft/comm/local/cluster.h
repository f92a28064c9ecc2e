// Ranks as threads of one process. A cluster holds what they share; every rank's thread uses its own world. Collectives
// copy directly from the peers' buffers once all members have made the call, and return (or throw) only when no peer
// reads the caller's buffers any more. In the memory of one or several GPUs, the copies are queued on the caller's
// stream after the work that the peers queued before their calls, later work on that stream waits until the peers have
// read, and calls return when everything is queued.
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

  // Runs body(world) on a thread per rank and returns when all have ended. An exception on one rank aborts the others;
  // the first one is rethrown here, with its type. After that the cluster cannot be used any more.
  void run(const std::function<void(World&)>& body);

 private:
  std::shared_ptr<class LocalState> state_;
  std::vector<std::unique_ptr<World>> worlds_;
};

}  // namespace weft
