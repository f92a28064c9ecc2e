// Runs the steps of a plan, its lanes in parallel.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "weft/execute/prepared_plan.h"
#include "weft/execute/stream_memory.h"

namespace weft {

struct NodeTime {
  double start = 0, end = 0;  // seconds since the step began
};

class Executor {
 public:
  virtual ~Executor() = default;
  // Returns when the step is done and the plan's results are on the host. Rethrows the first error of any lane once all
  // lanes have stopped. on_error is called immediately, from the lane's thread, to end the waits of other ranks.
  virtual void run_step(const std::function<void(const std::string&)>& on_error = {}) = 0;
  // Node times of the last step; empty unless asked for.
  virtual void keep_times(bool keep) = 0;
  virtual const std::vector<NodeTime>& times() const = 0;
  virtual double began() const = 0;  // of the last step, in seconds of the machine's steady clock
  // The next step has no updates left over from the previous one.
  virtual void nothing_carried() {}
  // What was fastest in the first steps, for the log; "" while still trying, or if there is nothing to choose.
  virtual std::string choice() const { return {}; }
  // The node that every lane is at, for reports. May be called from any thread.
  virtual std::string status() const = 0;
  // How steps reach the device, for the log; "" where there is nothing to report.
  virtual std::string launch_text() const { return ""; }
};

struct ExecutorOptions {
  bool graph = true;  // replay steps as one graph, on a device that queues its work
  // False: one node after another, in the order of the list, except for transfers between stages: these must not wait for
  // each other, since every stage has an order of its own.
  bool side_by_side = true;
  std::optional<int> update_processors;  // for updates that run beside other nodes; 0: no division; unset: tried out
  // By node of the plan, in seconds: it lasts at least so long and sleeps for the rest, as on a machine that computes
  // slower than it communicates. Empty: no node waits. Only where a lane is a thread that computes.
  std::vector<double> least_seconds;
};

// On a device that queues its work, if nothing in a step waits on the host, one thread queues all lanes or replays them
// as a graph. Otherwise each lane has a thread. memory: scratch memory of the lanes' streams.
std::unique_ptr<Executor> make_executor(const PreparedPlan& plan, Device& device, Stream& stream,
                                        const ExecutorOptions& options = {}, const StreamMemory& memory = {});

}  // namespace weft
