// Runs a plan of one rank on a device that queues its work: lanes are streams, and the calling thread puts every node
// on the stream of its lane, in the order of the list, with events where a node waits for another lane. A step is
// recorded as one graph at its second run (once more for every division tried) and queued as a whole from then on, its inputs and results with it. (A plan
// of several ranks waits on the host: ParallelExecutor.) Where updates run beside other nodes, each gets a part of the
// device's processors: otherwise kernels of one would fill them all, and those of the other wait. How large each part
// should be is tried out in the first steps.
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
  // The compute lane is `stream`; every other lane that the plan uses has a stream of its own, with room as `memory` says.
  StreamExecutor(const PreparedPlan& plan, Device& device, Stream& stream, const ExecutorOptions& options,
                 const StreamMemory& memory = {});

  void run_step(const std::function<void(const std::string&)>& on_error = {}) override;
  void keep_times(bool keep) override;  // such a step is not run as a graph: a graph does not tell the times of nodes
  const std::vector<NodeTime>& times() const override { return times_; }
  double began() const override { return begin_; }
  std::string status() const override;
  std::string launch_text() const override;
  void nothing_carried() override { carried_ = false; }
  std::string choice() const override;
  // How many processors updates get beside other nodes (all: they are not divided), and whether it stays so.
  const DivisionTrials& division() const { return trials_; }
  // Of the last step, in seconds: the host's time until all of it was queued, the host's time of waiting for its end, and
  // the device's from its beginning to its end, if that was asked for: it takes two events, which take the host some time.
  struct StepTimes {
    double queued = 0, waited = 0, on_device = 0;
  };
  StepTimes step_times() const;
  void time_on_device(bool wanted) { time_on_device_ = wanted; }
  std::size_t held_bytes() const;  // by the streams of other lanes than compute
  // Why steps do not run as a graph; "" if they do or will.
  const std::string& why_no_graph() const { return why_no_graph_; }
  bool was_graph() const { return was_graph_; }  // the last step
  // Why the host, not the device, unrolls the graph; "" if the device does, or there is none yet.
  std::string why_from_host() const { return graph_ ? graph_->why_from_host() : std::string(); }

 private:
  struct NodeWaits {
    std::vector<std::size_t> events;  // of other lanes' nodes, to wait for
    std::ptrdiff_t event = -1;        // to record behind the node, since others wait for it
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
  std::vector<LaneMarks> marks_;               // by node: what it waits for
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
  bool carried_ = false;  // the step before has left updates
  bool timing_ = false;   // events before and behind each node
  bool was_graph_ = false;
  bool time_on_device_ = false, timed_ = false;  // first_ and last_ are to be recorded; they were, in the last step
  std::string why_no_graph_;
  std::vector<NodeTime> times_;
  double begin_ = 0, queued_ = 0, done_ = 0;  // seconds of the steady clock
};

}  // namespace weft
