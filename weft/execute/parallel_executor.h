// Runs a plan with a thread a lane: every node starts when the nodes it must wait for are done, in the order of its
// lane. Lanes run in order, so "node n is done" is "its lane has come past n": a few counters, no locks.
#pragma once

#include <atomic>
#include <exception>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "weft/execute/executor.h"

namespace weft {

class ParallelExecutor : public Executor {
 public:
  // The compute lane runs on the calling thread and `stream`; every other lane that the plan uses has a thread.
  ParallelExecutor(const PreparedPlan& plan, Device& device, Stream& stream);
  ~ParallelExecutor() override;
  ParallelExecutor(const ParallelExecutor&) = delete;
  ParallelExecutor& operator=(const ParallelExecutor&) = delete;

  void run_step(const std::function<void(const std::string&)>& on_error = {}) override;
  void keep_times(bool keep) override { times_.resize(keep ? plan_.plan().nodes.size() : 0); }
  const std::vector<NodeTime>& times() const override { return times_; }
  double began() const override { return begin_; }
  std::string status() const override;

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
  std::mutex error_mutex_;
  std::exception_ptr error_;
  bool only_heard_ = false;  // error_ is a PeerError
};

}  // namespace weft
