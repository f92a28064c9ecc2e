#include "weft/execute/stream_executor.h"

#include <algorithm>
#include <chrono>

#include "weft/base/error.h"
#include "weft/execute/background_updates.h"

namespace weft {

namespace {

double now() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

}  // namespace

StreamExecutor::StreamExecutor(const PreparedPlan& plan, Device& device, Stream& stream, const ExecutorOptions& options,
                               const StreamMemory& memory)
    : plan_(plan),
      communicators_(plan.communicators()),
      device_(device),
      stream_(stream),
      trials_(divisions(options.update_processors)),
      start_(device.make_event()),
      first_(device.make_event()),
      last_(device.make_event()) {
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
  if (!options.graph) why_no_graph_ = "graphs are off";
  const std::vector<LaneMarks> marks = lane_waits(plan.plan(), plan.memory());
  done_before_ = done_before(plan.plan(), marks);
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
  // Updates left over from the previous step run beside nodes that need not wait yet for the last of them, be it through
  // the gather of what it updates; this step's updates run beside any node.
  std::ptrdiff_t last_update = -1;
  for (std::size_t i = 0; i < nodes.size(); ++i)
    if (nodes[i].lane == Lane::update) {
      last_update = static_cast<std::ptrdiff_t>(i);
      updates_.push_back(i);
    }
  while (beside_ < nodes.size() && (nodes[beside_].lane != Lane::compute ||
                                    done_before_[beside_][static_cast<std::size_t>(Lane::update)] < last_update))
    ++beside_;
  begin_trial();
}

DivisionTrials StreamExecutor::divisions(std::optional<int> update_processors) const {
  const std::vector<Node>& nodes = plan_.plan().nodes;
  const int all = device_.processors();
  const auto updates = [](const Node& node) { return node.lane == Lane::update; };
  if (std::none_of(nodes.begin(), nodes.end(), updates)) return DivisionTrials({all}, all);
  if (!update_processors) return DivisionTrials(divisions_to_try(all), all);
  return DivisionTrials({*update_processors > 0 && *update_processors < all ? *update_processors : all}, all);
}

// A step that is being recorded does not run, so communicators need not watch it.
void StreamExecutor::record_graph() {
  struct Recording {
    const std::vector<Communicator*>& communicators;
    explicit Recording(const std::vector<Communicator*>& all) : communicators(all) { set(true); }
    ~Recording() { set(false); }
    void set(bool on) const {
      for (Communicator* communicator : communicators) communicator->set_recording(on);
    }
  } recording(communicators_);
  graph_ = device_.capture(stream_, [this] { queue_step(); });
}

// Which nodes share, as far as the edges tell; watch_updates() narrows it down.
void StreamExecutor::begin_trial() {
  const std::vector<Node>& nodes = plan_.plan().nodes;
  shares_.resize(nodes.size());
  for (std::size_t i = 0; i < nodes.size(); ++i) shares_[i] = nodes[i].lane == Lane::update || i < beside_;
  divide_processors();
}

void StreamExecutor::divide_processors() {
  const std::vector<Node>& nodes = plan_.plan().nodes;
  const int all = device_.processors(), updates = trials_.processors();
  processors_.assign(nodes.size(), all);
  if (!ran_ || !trials_.divides()) return;  // in the first step every operation sees all processors
  for (std::size_t i = 0; i < nodes.size(); ++i)
    if (shares_[i]) processors_[i] = nodes[i].lane == Lane::update ? updates : all - updates;
}

// Uses the times of a step in which all updates had their share of the processors. Updates that would keep the compute
// lane waiting get all processors instead, and so do nodes that then have no update beside them.
void StreamExecutor::watch_updates() {
  const std::vector<Node>& nodes = plan_.plan().nodes;
  constexpr auto compute = static_cast<std::size_t>(Lane::compute), update = static_cast<std::size_t>(Lane::update);
  // Clock of the compute lane, without its waits.
  std::vector<NodeTime> own(nodes.size());
  double now = 0;
  for (std::size_t i = 0; i < nodes.size(); ++i) {
    own[i].start = now;
    if (nodes[i].lane == Lane::compute) now += time_of(i).end - time_of(i).start;
    own[i].end = now;
  }
  std::vector<BackgroundUpdate> updates;
  for (std::size_t u : updates_) {
    const std::int32_t last = done_before_[u][compute];
    std::size_t user = 0;  // the first node that waits for it
    while (user < nodes.size() &&
           (nodes[user].lane != Lane::compute || done_before_[user][update] < static_cast<std::int32_t>(u)))
      ++user;
    updates.push_back({last < 0 ? 0 : own[static_cast<std::size_t>(last)].end,
                       user < nodes.size() ? own[user].start : now, time_of(u).end - time_of(u).start});
  }
  const std::vector<std::optional<NodeTime>> background = in_background(updates);
  for (std::size_t u = 0; u < updates_.size(); ++u) shares_[updates_[u]] = background[u].has_value();
  for (std::size_t i = 0; i < beside_; ++i)
    if (nodes[i].lane == Lane::compute)
      shares_[i] = std::any_of(background.begin(), background.end(), [&](const std::optional<NodeTime>& t) {
        return t && t->start < own[i].end && own[i].start < t->end;
      });
}

// After a step that counts for the trials.
void StreamExecutor::end_trial_step(double seconds) {
  if (trials_.stage() == DivisionTrials::Stage::watch) {
    watch_updates();
    graph_.reset();
  }
  const bool timing = trials_.stage() == DivisionTrials::Stage::time;
  if (trials_.passed(seconds)) quickest_ = {std::move(graph_), shares_};
  const bool timed = timing && trials_.stage() != DivisionTrials::Stage::time;
  if (timed) {
    graph_.reset();
    begin_trial();
  }
  if (timed && trials_.settled()) {
    graph_ = std::move(quickest_.graph);
    shares_ = quickest_.shares;
  }
  divide_processors();
}

void StreamExecutor::keep_times(bool keep) { times_.resize(keep ? plan_.plan().nodes.size() : 0); }

void StreamExecutor::queue_step() {
  const std::vector<Node>& nodes = plan_.plan().nodes;
  plan_.queue_inputs(stream_);  // before start_, which every other lane waits for
  start_->record(stream_);
  for (const auto& own : own_) start_->wait_on(*own);
  for (std::size_t i = 0; i < nodes.size(); ++i) {
    Stream& stream = stream_of(nodes[i].lane);
    for (std::size_t event : waits_[i].events) events_[event]->wait_on(stream);
    if (timing_) node_times_[2 * i]->record(stream);
    stream.use_processors(processors_[i]);
    plan_.run_node(NodeId(static_cast<std::int64_t>(i)), stream);
    if (timing_) node_times_[2 * i + 1]->record(stream);
    if (waits_[i].event >= 0) events_[static_cast<std::size_t>(waits_[i].event)]->record(stream);
  }
  for (std::size_t lane = 0; lane < own_.size(); ++lane) {
    lane_ends_[lane]->record(*own_[lane]);
    lane_ends_[lane]->wait_on(stream_);
  }
  plan_.queue_results(stream_);
  stream_.use_processors(device_.processors());
}

// After a failed step: its nodes use the plan's memory, and its inputs are read from host memory.
void StreamExecutor::wait_for_what_is_queued() noexcept {
  const auto wait = [](Stream& stream) {
    try {
      stream.synchronize();
    } catch (const std::exception&) {  // the step's error is the one to report
    }
  };
  wait(stream_);
  for (const auto& own : own_) wait(*own);
}

NodeTime StreamExecutor::time_of(std::size_t node) const {
  return {node_times_[2 * node]->seconds_since(*start_), node_times_[2 * node + 1]->seconds_since(*start_)};
}

void StreamExecutor::run_step(const std::function<void(const std::string&)>& on_error) {
  using Stage = DivisionTrials::Stage;
  begin_ = now();
  try {
    const Stage stage = trials_.stage();
    const bool counts =
        stage == Stage::meet ? ran_ || !trials_.divides() : !trials_.settled() && times_.empty() && carried_;
    timing_ = !times_.empty() || (counts && stage == Stage::watch);
    while (timing_ && node_times_.size() < 2 * plan_.plan().nodes.size()) node_times_.push_back(device_.make_event());
    const bool as_graph = stage != Stage::meet && !timing_ && why_no_graph_.empty();
    if (as_graph && !graph_) {
      record_graph();
      if (!graph_) why_no_graph_ = fmt::format("{} has no graphs", device_.name());
    }
    timed_ = counts || time_on_device_;
    if (timed_) first_->record(stream_);
    was_graph_ = as_graph && graph_;
    if (was_graph_) {
      for (Communicator* communicator : communicators_) communicator->begin_replay(stream_);
      graph_->launch(stream_);
      for (Communicator* communicator : communicators_) communicator->end_replay(stream_);
    } else {
      queue_step();
    }
    if (timed_) last_->record(stream_);
    queued_ = now();
    plan_.wait(stream_);
    done_ = now();
    for (std::size_t i = 0; i < times_.size(); ++i) times_[i] = time_of(i);
    ran_ = carried_ = true;
    if (counts)
      end_trial_step(step_times().on_device);
    else
      divide_processors();
  } catch (const std::exception& e) {
    if (on_error) on_error(e.what());
    wait_for_what_is_queued();
    throw;
  }
}

std::string StreamExecutor::launch_text() const {
  if (why_no_graph_.empty()) return "a step is one CUDA graph";
  return fmt::format("a step is queued node by node, not as a CUDA graph: {}", why_no_graph_);
}

std::string StreamExecutor::choice() const {
  std::string text;
  if (!updates_.empty() && trials_.settled())
    text = trials_.divides() ? fmt::format("updates took {} of {} processors beside other work", trials_.processors(),
                                           device_.processors())
                             : "updates took turns with other work on all processors";
  if (!why_from_host().empty())
    text +=
        fmt::format("{}the host launched the work of steps one by one: {}", text.empty() ? "" : "; ", why_from_host());
  return text;
}

StreamExecutor::StepTimes StreamExecutor::step_times() const {
  return {queued_ - begin_, done_ - queued_, timed_ ? last_->seconds_since(*first_) : 0};
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
