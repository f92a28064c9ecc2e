// All ranks of a run, as one of them sees them: it makes groups, ends the run when a rank fails, and knows where ranks
// stand when a wait takes too long. Implementations: LocalCluster (weft/comm/local/cluster.h), make_mpi_world
// (weft/comm/mpi_world.h), make_tcp_world (weft/comm/tcp_world.h), and make_nccl_world (weft/comm/nccl_world.h) around
// another one.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "weft/base/error.h"
#include "weft/comm/communicator.h"

namespace weft {

// Another rank failed, and with it the run: an echo of that rank's own error. "rank 2 failed: MESSAGE".
class PeerError : public RunError {
 public:
  PeerError(RankId rank, const std::string& message)
      : RunError("rank {} failed: {}", rank.value, message), rank_(rank) {}
  // It ended without a word, and a peer noticed by its connection. "rank 2 is gone (its connection closed)".
  static PeerError lost(RankId rank, const std::string& why) {
    return {fmt::format("rank {} is gone ({})", rank.value, why), rank};
  }
  RankId rank() const { return rank_; }

 private:
  PeerError(const std::string& text, RankId rank) : RunError(text), rank_(rank) {}

  RankId rank_;
};

class World {
 public:
  virtual ~World() = default;

  virtual RankId rank() const = 0;
  virtual int size() const = 0;

  // Collective over the members, which ascend or not but are different, and include this rank. Ranks that share several
  // groups make them in the same order. Called by one thread at a time. The world outlives its groups.
  // device: whose memory the group moves; null for the host's. Alike on all members; outlives the group. UserError where
  // this world cannot reach it.
  virtual std::unique_ptr<Communicator> make_group(std::span<const RankId> members, const std::string& name,
                                                   Device* device) = 0;
  std::unique_ptr<Communicator> make_group(std::span<const RankId> members, const std::string& name) {
    return make_group(members, name, nullptr);
  }
  // Of all ranks, over host memory.
  std::unique_ptr<Communicator> make_group_of_all(const std::string& name) {
    std::vector<RankId> all;
    for (int r = 0; r < size(); ++r) all.emplace_back(r);
    return make_group(all, name, nullptr);
  }

  // This rank failed: ends every wait on every rank, now and later, with PeerError. The first message wins.
  // Thread-safe.
  virtual void abort(const std::string& message) = 0;
  // Throws PeerError when the run has ended by an abort: for loops that do not communicate. Thread-safe, cheap.
  virtual void throw_if_ended() const = 0;

  // Of this rank's waits from now on; fractions of a second are fine. Ten minutes unless told.
  virtual void set_timeout(double seconds) = 0;
  virtual double timeout() const { return 600; }
  // Says where this rank stands ("micro-batch 3, layer 2, dispatch"), for reports of any rank. Called from other
  // threads at any time; must not communicate. An empty function takes it back, and waits for a call under way.
  virtual void set_status(std::function<std::string()> status) = 0;
  // Where every rank stands, by rank, for a report; "" for one that gives no answer. May take a second. Thread-safe.
  virtual std::vector<std::string> standings() { return {}; }

 protected:
  World() = default;
  World(const World&) = delete;
  World& operator=(const World&) = delete;
};

}  // namespace weft
