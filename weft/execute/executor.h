// Runs the steps of a plan, lanes beside each other.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "weft/execute/prepared_plan.h"

namespace weft {

struct NodeTime {
  double start = 0, end = 0;  // seconds since the step began
};

class Executor {
 public:
  virtual ~Executor() = default;
  // Returns when the step is done and the plan's results are on the host, and rethrows the first error of any lane when
  // all lanes have stopped. on_error is called at once, from the lane's thread: to end waits of other ranks.
  virtual void run_step(const std::function<void(const std::string&)>& on_error = {}) = 0;
  // Node times of the last step; empty unless asked for.
  virtual void keep_times(bool keep) = 0;
  virtual const std::vector<NodeTime>& times() const = 0;
  virtual double began() const = 0;  // of the last step, in seconds of the machine's steady clock
  // The next step finds no updates that one before has left to it.
  virtual void nothing_carried() {}
  // What it found out to be quickest in the first steps, for the log; "" while it tries or if there is nothing to choose.
  virtual std::string choice() const { return {}; }
  // Where every lane stands, for reports; from any thread.
  virtual std::string status() const = 0;
  // How steps come to the device, for the log; "" where there is nothing to say.
  virtual std::string manner() const { return ""; }
};

}  // namespace weft
