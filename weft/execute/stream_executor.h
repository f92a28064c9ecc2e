// Runs a plan in which nothing waits on the host, on a device that queues its work. Lanes are streams. The calling
// thread queues every node on the stream of its lane, in list order, with events where a node waits for another lane.
// At its second run (and once more for every division tried) a step is recorded as one graph, with its inputs and
// results, and launched as a whole from then on. Where updates run beside other nodes, each side gets a share of the
// processors: otherwise the kernels of one would fill them all and the other would wait. The first steps find the best
// shares.
#pragma once

#include <array>
#include <memory>
#include <string>
#include <vector>

#include "weft/execute/division_trials.h"
#include "weft/execute/executor.h"
#include "weft/execute/stream_memory.h"
#include "weft/plan/edges.h"

namespace weft {

class StreamExecutor : public Executor {
 public:
  // The compute lane is `stream`; every other lane that the plan uses has its own stream, with scratch memory as in
  // `memory`.
  StreamExecutor(const PreparedPlan& plan, Device& device, Stream& stream, const ExecutorOptions& options,
                 const StreamMemory& memory = {});

  void run_step(const std::function<void(const std::string&)>& on_error = {}) override;
  void keep_times(bool keep) override;  // such steps do not run as a graph, which has no times of nodes
  const std::vector<NodeTime>& times() const override { return times_; }
  double began() const override { return begin_; }
  std::string status() const override;
  std::string launch_text() const override;
  void nothing_carried() override { carried_ = false; }
  std::string choice() const override;
  // How many processors updates get beside other nodes (all: no division), and whether that is settled.
  const DivisionTrials& division() const { return trials_; }
  // Seconds of the last step: the host's time to queue it, the host's time waiting for its end, and the device's time
  // from beginning to end. The last only if asked for: its two events cost the host some time.
  struct StepTimes {
    double queued = 0, waited = 0, on_device = 0;
  };
  StepTimes step_times() const;
  void time_on_device(bool wanted) { time_on_device_ = wanted; }
  std::size_t held_bytes() const;  // by the streams of lanes other than compute
  // Why steps do not run as a graph; "" if they do or will.
  const std::string& why_no_graph() const { return why_no_graph_; }
  bool was_graph() const { return was_graph_; }  // the last step
  // Why the host, not the device, launches the nodes of the graph; "" if the device does, or there is no graph yet.
  std::string why_from_host() const { return graph_ ? graph_->why_from_host() : std::string(); }

 private:
  struct NodeWaits {
    std::vector<std::size_t> events;  // of other lanes' nodes, to wait for
    std::ptrdiff_t event = -1;        // to record after the node, since others wait for it
  };
  DivisionTrials divisions(std::optional<int> update_processors) const;
  void record_graph();
  void begin_trial();
  void divide_processors();
  void watch_updates();
  void end_trial_step(double seconds);
  void queue_step();
  void wait_for_what_is_queued() noexcept;
  NodeTime time_of(std::size_t node) const;
  Stream& stream_of(Lane lane) const { return *streams_[static_cast<std::size_t>(lane)]; }

  const PreparedPlan& plan_;
  const std::vector<Communicator*> communicators_;
  Device& device_;
  Stream& stream_;
  std::array<Stream*, lane_count> streams_{};  // by lane; null where the plan does not use it
  std::vector<std::unique_ptr<Stream>> own_;   // of lanes other than compute
  std::vector<NodeWaits> waits_;               // by node
  std::vector<LaneMarks> done_before_;         // by node: what is done when it begins
  std::vector<std::size_t> updates_;           // the nodes of the update lane
  std::size_t beside_ = 0;                     // nodes before this one may run beside them
  DivisionTrials trials_;
  std::vector<bool> shares_;     // by node: updates and what runs beside them
  std::vector<int> processors_;  // by node: how many of the device's it may take
  std::vector<std::unique_ptr<Event>> events_, lane_ends_, node_times_;
  std::unique_ptr<Event> start_, first_, last_;  // first_, last_: around a step, outside of its graph
  std::unique_ptr<Graph> graph_;
  struct {
    std::unique_ptr<Graph> graph;
    std::vector<bool> shares;
  } quickest_;            // of the divisions tried so far
  bool ran_ = false;      // at least once
  bool carried_ = false;  // the previous step has left updates
  bool timing_ = false;   // events before and after each node
  bool was_graph_ = false;
  bool time_on_device_ = false, timed_ = false;  // record first_ and last_; they were recorded in the last step
  std::string why_no_graph_;
  std::vector<NodeTime> times_;
  double begin_ = 0, queued_ = 0, done_ = 0;  // seconds of the steady clock
};

}  // namespace weft
