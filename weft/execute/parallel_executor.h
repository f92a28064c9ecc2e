// Runs a plan with a thread per lane. A node starts when the nodes it waits for are done. Each lane runs in order, so
// "node n is done" means "its lane has passed n": a few counters, no locks. On a device that queues its work, "done"
// means "queued", and the stream waits for an event recorded after the node. So a lane that waits on the host, for
// other ranks or for the sizes of what they exchange, does not keep the others from queueing.
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
  // The compute lane runs on the calling thread and `stream`; every other lane that the plan uses has its own thread.
  // why_no_graph: why a device that queues its work does not replay steps as a graph. least_seconds, side_by_side: see
  // ExecutorOptions.
  ParallelExecutor(const PreparedPlan& plan, Device& device, Stream& stream, std::string why_no_graph = {},
                   std::vector<double> least_seconds = {}, bool side_by_side = true);
  ~ParallelExecutor() override;
  ParallelExecutor(const ParallelExecutor&) = delete;
  ParallelExecutor& operator=(const ParallelExecutor&) = delete;

  void run_step(const std::function<void(const std::string&)>& on_error = {}) override;
  void keep_times(bool keep) override;
  const std::vector<NodeTime>& times() const override { return times_; }
  double began() const override { return begin_; }
  std::string status() const override;
  std::string launch_text() const override;

 private:
  struct Wait {
    int lane;
    std::uint32_t passed;  // nodes of that lane that must be done
  };
  struct LaneNode {
    NodeId node;
    std::vector<Wait> waits;
    std::unique_ptr<Event> done;  // where work is queued and another lane waits for this node
  };
  struct LaneQueue {
    Lane lane = Lane::compute;
    std::vector<LaneNode> nodes;
    alignas(64) std::atomic<std::uint32_t> passed{0};
    std::unique_ptr<Stream> stream;  // of lanes with their own thread
    std::thread thread;
  };

  void build_queues(bool side_by_side);
  void stop();  // the lanes' threads
  void run_lane(int lane, Stream& stream);
  bool run_nodes(LaneQueue& queue, Stream& stream);            // false: the step has failed
  void finish_queued(const LaneQueue& queue, Stream& stream);  // where work is queued: waits for it
  void serve(int lane);
  bool wait_for(const Wait& wait, Stream& stream);  // false: the step has failed
  void read_times();
  void fail(std::exception_ptr error, const LaneQueue& queue);

  const PreparedPlan& plan_;
  Device& device_;
  Stream& stream_;
  const std::string why_no_graph_;
  const std::vector<double> least_seconds_;  // by node, or empty
  const bool queues_;                        // operations return when their work is queued
  std::vector<std::unique_ptr<LaneQueue>> lanes_;
  std::vector<NodeTime> times_;
  std::unique_ptr<Event> start_;                    // of a step, where work is queued
  std::vector<std::unique_ptr<Event>> node_times_;  // before and after each node
  double begin_ = 0;
  const std::function<void(const std::string&)>* on_error_ = nullptr;
  std::atomic<std::uint32_t> round_{0}, running_{0};
  std::atomic<bool> failed_{false}, stop_{false};
  std::mutex error_mutex_;
  std::exception_ptr error_;
  bool only_heard_ = false;  // error_ is a PeerError
};

}  // namespace weft
