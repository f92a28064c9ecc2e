#include "weft/execute/stream_executor.h"

#include <algorithm>
#include <chrono>
#include <cstdlib>

#include "weft/base/error.h"

namespace weft {

namespace {

// How many of a device's processors updates get while the forward pass runs beside them: what keeps the memory busy, and
// no more; an even number, since a GPU's blocks often come in pairs. 48 of 132 was best on an H200 (docs/gpu.md).
// WEFT_UPDATE_PROCESSORS: another, for another GPU; 0 for no division.
int processors_for_updates(const Device& device) {
  const int all = device.processors();
  const char* text = std::getenv("WEFT_UPDATE_PROCESSORS");
  const int wanted = text != nullptr ? std::atoi(text) : all / 11 * 4;
  return wanted > 0 && wanted < all ? wanted : all;
}

double now() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

}  // namespace

StreamExecutor::StreamExecutor(const PreparedPlan& plan, Device& device, Stream& stream, bool graph,
                               const StreamMemory& memory)
    : plan_(plan),
      device_(device),
      stream_(stream),
      start_(device.make_event()),
      first_(device.make_event()),
      last_(device.make_event()) {
  WEFT_CHECK(plan.plan().collectives.empty(), "a plan that communicates waits on the host: a thread a lane for it");
  const std::vector<Node>& nodes = plan.plan().nodes;
  streams_[static_cast<std::size_t>(Lane::compute)] = &stream;
  for (const Node& node : nodes) {
    Stream*& of_lane = streams_[static_cast<std::size_t>(node.lane)];
    if (!of_lane) {
      own_.push_back(device.make_urgent_stream());
      lane_ends_.push_back(device.make_event());
      of_lane = own_.back().get();
      of_lane->reserve(memory.lanes[static_cast<std::size_t>(node.lane)]);
    }
  }
  if (!graph) why_no_graph_ = "--cuda-graph none";
  const std::vector<LaneMarks> marks = lane_waits(plan.plan(), plan.memory());
  waits_.resize(nodes.size());
  for (std::size_t i = 0; i < nodes.size(); ++i)
    for (std::size_t lane = 0; lane < lane_count; ++lane) {
      if (marks[i][lane] < 0) continue;
      std::ptrdiff_t& event = waits_[static_cast<std::size_t>(marks[i][lane])].event;
      if (event < 0) {
        event = std::ssize(events_);
        events_.push_back(device.make_event());
      }
      waits_[i].events.push_back(static_cast<std::size_t>(event));
    }
  divide_processors(marks);
}

// Updates that the step before has left share the device with the nodes that do not yet wait for the last of them.
void StreamExecutor::divide_processors(const std::vector<LaneMarks>& marks) {
  const std::vector<Node>& nodes = plan_.plan().nodes;
  const int all = device_.processors(), updates = processors_for_updates(device_);
  processors_.assign(nodes.size(), all);
  const auto last = std::find_if(nodes.rbegin(), nodes.rend(), [](const Node& node) { return node.carried; });
  if (last == nodes.rend() || updates == all) return;
  const std::ptrdiff_t last_update = nodes.rend() - last - 1;
  bool beside_updates = true;
  for (std::size_t i = 0; i < nodes.size(); ++i) {
    if (nodes[i].lane == Lane::compute && marks[i][static_cast<std::size_t>(Lane::update)] >= last_update)
      beside_updates = false;
    if (nodes[i].carried)
      processors_[i] = updates;
    else if (beside_updates)
      processors_[i] = all - updates;
  }
}

void StreamExecutor::keep_times(bool keep) {
  times_.resize(keep ? plan_.plan().nodes.size() : 0);
  while (node_times_.size() < 2 * times_.size()) node_times_.push_back(device_.make_event());
}

void StreamExecutor::queue_step() {
  const std::vector<Node>& nodes = plan_.plan().nodes;
  start_->record(stream_);
  for (const auto& own : own_) start_->wait_on(*own);
  for (std::size_t i = 0; i < nodes.size(); ++i) {
    Stream& stream = stream_of(nodes[i].lane);
    for (std::size_t event : waits_[i].events) events_[event]->wait_on(stream);
    if (!times_.empty()) node_times_[2 * i]->record(stream);
    stream.use_processors(processors_[i]);
    plan_.run_node(NodeId(static_cast<std::int64_t>(i)), stream);
    if (!times_.empty()) node_times_[2 * i + 1]->record(stream);
    if (waits_[i].event >= 0) events_[static_cast<std::size_t>(waits_[i].event)]->record(stream);
  }
  for (std::size_t lane = 0; lane < own_.size(); ++lane) {
    lane_ends_[lane]->record(*own_[lane]);
    lane_ends_[lane]->wait_on(stream_);
  }
  stream_.use_processors(device_.processors());
}

void StreamExecutor::read_times() {
  for (std::size_t i = 0; i < times_.size(); ++i)
    times_[i] = {node_times_[2 * i]->seconds_since(*start_), node_times_[2 * i + 1]->seconds_since(*start_)};
}

void StreamExecutor::run_step(const std::function<void(const std::string&)>& on_error) {
  begin_ = now();
  try {
    // The first run meets every shape: it chooses algorithms and sizes scratch memory.
    const bool as_graph = runs_ > 0 && times_.empty() && why_no_graph_.empty();
    if (as_graph && !graph_) {
      graph_ = device_.capture(stream_, [this] { queue_step(); });
      if (!graph_) why_no_graph_ = fmt::format("{} has no graphs", device_.name());
    }
    first_->record(stream_);
    if (as_graph && graph_)
      graph_->launch(stream_);
    else
      queue_step();
    last_->record(stream_);
    queued_ = now();
    stream_.synchronize();
    done_ = now();
    read_times();
    ++runs_;
  } catch (const std::exception& e) {
    if (on_error) on_error(e.what());
    throw;
  }
}

std::string StreamExecutor::manner() const {
  if (why_no_graph_.empty()) return "a step is one CUDA graph";
  return fmt::format("a step is queued node by node, not as a CUDA graph: {}", why_no_graph_);
}

StreamExecutor::StepTimes StreamExecutor::step_times() const {
  return {queued_ - begin_, done_ - queued_, last_->seconds_since(*first_)};
}

std::size_t StreamExecutor::held_bytes() const {
  std::size_t sum = 0;
  for (const auto& own : own_) sum += own->held_bytes();
  return sum;
}

std::string StreamExecutor::status() const {
  return fmt::format("a step of {} nodes is queued on {}", plan_.plan().nodes.size(), device_.name());
}

}  // namespace weft
