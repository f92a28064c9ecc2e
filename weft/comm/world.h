// All ranks of a run, as one of them sees them: makes groups, ends the run when a rank fails, and knows what ranks are
// doing when a wait takes too long. Implementations: LocalCluster (weft/comm/local/cluster.h), make_mpi_world
// (weft/comm/mpi_world.h), make_tcp_world (weft/comm/tcp_world.h), and make_nccl_world (weft/comm/nccl_world.h), which
// wraps one of the others.
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

// Another rank failed, and the run with it. Repeats that rank's own error: "rank 2 failed: MESSAGE".
class PeerError : public RunError {
 public:
  PeerError(RankId rank, const std::string& message)
      : RunError("rank {} failed: {}", rank.value, message), rank_(rank) {}
  // It ended without reporting an error, and a peer noticed that its connection closed: "rank 2 is gone (its connection
  // closed)".
  static PeerError lost(RankId rank, const std::string& why) {
    return {fmt::format("rank {} is gone ({})", rank.value, why), rank, true};
  }
  // It could not say where it was, so whoever waited for it says where that was: "..., noticed at node 37, ...".
  PeerError noticed_at(const std::string& where) const {
    return {fmt::format("{}, noticed at {}", what(), where), rank_, true};
  }
  RankId rank() const { return rank_; }
  bool is_lost() const { return lost_; }

 private:
  PeerError(const std::string& text, RankId rank, bool lost) : RunError(text), rank_(rank), lost_(lost) {}

  RankId rank_;
  bool lost_ = false;
};

class World {
 public:
  virtual ~World() = default;

  virtual RankId rank() const = 0;
  virtual int size() const = 0;

  // Collective over the members, which are distinct, in any order, and include this rank. Ranks that share several
  // groups make them in the same order. Called by one thread at a time. The world outlives its groups.
  // device: whose memory the group moves; null for host memory. The same kind on all members; outlives the group.
  // UserError if this world cannot move its memory.
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

  // This rank failed: ends every current and later wait on every rank with PeerError. The first message wins.
  // Thread-safe.
  virtual void abort(const std::string& message) = 0;
  // Throws PeerError if the run was aborted: for loops that do not communicate. Thread-safe, cheap.
  virtual void throw_if_ended() const = 0;

  // The timeout of this rank's later waits; may be fractional. Ten minutes by default.
  virtual void set_timeout(double seconds) = 0;
  virtual double timeout() const { return 600; }
  // Sets the function that tells what this rank is doing ("micro-batch 3, layer 2, dispatch"), for reports of any rank.
  // It is called from other threads at any time and must not communicate. An empty function removes it, and waits for a
  // call in progress.
  virtual void set_status(std::function<std::string()> status) = 0;
  // What every rank is doing, by rank, for a report; "" for a rank that does not answer. May take a second.
  // Thread-safe.
  virtual std::vector<std::string> activities() { return {}; }

 protected:
  World() = default;
  World(const World&) = delete;
  World& operator=(const World&) = delete;
};

}  // namespace weft
