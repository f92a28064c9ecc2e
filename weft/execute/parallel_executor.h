// Runs a plan with a thread a lane: every node starts when the nodes it must wait for are done, in the order of its
// lane. Lanes run in order, so "node n is done" is "its lane has come past n": a few counters, no locks.
#pragma once

#include <atomic>
#include <exception>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "weft/execute/prepared_plan.h"

namespace weft {

struct NodeTime {
  double start = 0, end = 0;  // seconds since the step began
};

class ParallelExecutor {
 public:
  // The compute lane runs on the calling thread and `stream`; every other lane that the plan uses has a thread.
  ParallelExecutor(const PreparedPlan& plan, Device& device, Stream& stream);
  ~ParallelExecutor();
  ParallelExecutor(const ParallelExecutor&) = delete;
  ParallelExecutor& operator=(const ParallelExecutor&) = delete;

  // Rethrows the first error of any lane, when all lanes have stopped. on_error is called at once, from the lane's
  // thread: to end waits of other ranks.
  void run_step(const std::function<void(const std::string&)>& on_error = {});
  // Node times of the last step; empty unless asked for.
  void keep_times(bool keep) { times_.resize(keep ? plan_.plan().nodes.size() : 0); }
  const std::vector<NodeTime>& times() const { return times_; }
  double began() const { return begin_; }  // of the last step, in seconds of the machine's steady clock
  // Where every lane stands, for reports; from any thread.
  std::string status() const;

 private:
  struct Wait {
    int lane;
    std::uint32_t passed;  // nodes of that lane that must be done
  };
  struct LaneNode {
    NodeId node;
    std::vector<Wait> waits;
  };
  struct LaneQueue {
    Lane lane = Lane::compute;
    std::vector<LaneNode> nodes;
    alignas(64) std::atomic<std::uint32_t> passed{0};
    std::unique_ptr<Stream> stream;  // of lanes with a thread of their own
    std::thread thread;
  };

  void build_queues(Device& device);
  void run_lane(int lane, Stream& stream);
  void serve(int lane);
  bool wait_for(const Wait& wait);  // false: the step has failed
  void fail(std::exception_ptr error, const LaneQueue& queue);

  const PreparedPlan& plan_;
  Stream& stream_;
  std::vector<std::unique_ptr<LaneQueue>> lanes_;
  std::vector<NodeTime> times_;
  double begin_ = 0;
  const std::function<void(const std::string&)>* on_error_ = nullptr;
  std::atomic<std::uint32_t> round_{0}, running_{0};
  std::atomic<bool> failed_{false}, stop_{false};
  std::exception_ptr error_;
};

}  // namespace weft
