#include "weft/execute/parallel_executor.h"

#include <algorithm>
#include <chrono>
#include <system_error>

#include <sys/prctl.h>

#include "weft/base/error.h"
#include "weft/execute/lane_priority.h"

namespace weft {

namespace {

constexpr int spins = 2000;  // waking a sleeping thread takes tens of microseconds, a spinning one a fraction of one
constexpr std::uint32_t everything = 1u << 28;  // ends every wait of a failed step

double now() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

// Of the clock of now().
void sleep_until(double end) {
  if (now() >= end) return;
  prctl(PR_SET_TIMERSLACK, 1UL);  // of this thread: wake on time, not 50 us late
  std::this_thread::sleep_until(std::chrono::steady_clock::time_point(
      std::chrono::duration_cast<std::chrono::steady_clock::duration>(std::chrono::duration<double>(end))));
}

void relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

// Until value >= least.
void wait_until(const std::atomic<std::uint32_t>& value, std::uint32_t least) {
  for (int i = 0; i < spins; ++i) {
    if (value.load(std::memory_order_acquire) >= least) return;
    relax();
  }
  for (std::uint32_t seen = value.load(std::memory_order_acquire); seen < least;
       seen = value.load(std::memory_order_acquire))
    value.wait(seen, std::memory_order_acquire);
}

}  // namespace

ParallelExecutor::ParallelExecutor(const PreparedPlan& plan, Device& device, Stream& stream, std::string why_no_graph,
                                   std::vector<double> least_seconds, bool side_by_side)
    : plan_(plan),
      device_(device),
      stream_(stream),
      why_no_graph_(std::move(why_no_graph)),
      least_seconds_(std::move(least_seconds)),
      queues_(device.asynchronous()) {
  WEFT_CHECK(least_seconds_.empty() || least_seconds_.size() == plan.plan().nodes.size(), "times of {} nodes, not {}",
             least_seconds_.size(), plan.plan().nodes.size());
  if (queues_) start_ = device.make_event();
  build_queues(side_by_side);
  try {
    for (std::size_t lane = 1; lane < lanes_.size(); ++lane)
      lanes_[lane]->thread = std::thread([this, lane] { serve(static_cast<int>(lane)); });
  } catch (const std::system_error& e) {
    stop();
    throw RunError(
        "the {} lanes of a step need a thread each, and one could not be started ({}): raise the limit on "
        "processes or memory, or use `executor` serial",
        lanes_.size(), e.what());
  }
}

ParallelExecutor::~ParallelExecutor() { stop(); }

void ParallelExecutor::stop() {
  stop_.store(true);
  round_.fetch_add(1, std::memory_order_release);
  round_.notify_all();
  for (const auto& lane : lanes_)
    if (lane->thread.joinable()) lane->thread.join();
}

void ParallelExecutor::build_queues(bool side_by_side) {
  const Plan& plan = plan_.plan();
  std::array<int, lane_count> index;
  index.fill(-1);
  const auto queue_of = [&](Lane lane) {
    if (!side_by_side && !between_stages(lane)) lane = Lane::compute;
    int& at = index[static_cast<std::size_t>(lane)];
    if (at < 0) {
      at = static_cast<int>(lanes_.size());
      lanes_.push_back(std::make_unique<LaneQueue>());
      lanes_.back()->lane = lane;
      if (lane != Lane::compute)
        lanes_.back()->stream = queues_ ? device_.make_urgent_stream() : device_.make_stream(1);
    }
    return at;
  };
  queue_of(Lane::compute);                                                // always first
  const std::vector<LaneMarks> waits = lane_waits(plan, plan_.memory());  // last node of each other lane to wait for
  std::vector<std::uint32_t> position(plan.nodes.size());                 // in its lane, from 1
  for (std::size_t i = 0; i < plan.nodes.size(); ++i) {
    const int own = queue_of(plan.nodes[i].lane);
    LaneNode node{NodeId(static_cast<std::int64_t>(i)), {}, {}};
    for (std::size_t lane = 0; lane < lane_count; ++lane) {
      const std::int32_t mark = waits[i][lane];
      if (mark < 0) continue;
      const Wait wait{queue_of(static_cast<Lane>(lane)), position[static_cast<std::size_t>(mark)]};
      if (wait.lane == own) continue;  // one queue for several lanes
      std::unique_ptr<Event>& done = lanes_[static_cast<std::size_t>(wait.lane)]->nodes[wait.passed - 1].done;
      if (queues_ && !done) done = device_.make_event();
      node.waits.push_back(wait);
    }
    lanes_[static_cast<std::size_t>(own)]->nodes.push_back(std::move(node));
    position[i] = static_cast<std::uint32_t>(lanes_[static_cast<std::size_t>(own)]->nodes.size());
  }
}

void ParallelExecutor::keep_times(bool keep) {
  times_.resize(keep ? plan_.plan().nodes.size() : 0);
  while (queues_ && node_times_.size() < 2 * times_.size()) node_times_.push_back(device_.make_event());
}

bool ParallelExecutor::wait_for(const Wait& wait, Stream& stream) {
  const LaneQueue& other = *lanes_[static_cast<std::size_t>(wait.lane)];
  wait_until(other.passed, wait.passed);
  if (failed_.load(std::memory_order_acquire)) return false;
  if (queues_) other.nodes[wait.passed - 1].done->wait_on(stream);
  return true;
}

bool ParallelExecutor::run_nodes(LaneQueue& queue, Stream& stream) {
  for (const LaneNode& node : queue.nodes) {
    try {
      for (const Wait& wait : node.waits)
        if (!wait_for(wait, stream)) return false;
      if (failed_.load(std::memory_order_acquire)) return false;
      const double start = times_.empty() && least_seconds_.empty() ? 0 : now();
      const std::size_t i = node.node.index();
      if (queues_ && !times_.empty()) node_times_[2 * i]->record(stream);
      plan_.run_node(node.node, stream);
      if (!least_seconds_.empty()) sleep_until(start + least_seconds_[i]);
      if (node.done) node.done->record(stream);
      if (!times_.empty()) {
        if (queues_)
          node_times_[2 * i + 1]->record(stream);
        else
          times_[i] = {start - begin_, now() - begin_};
      }
    } catch (...) {
      fail(std::current_exception(), queue);
      return false;
    }
    queue.passed.fetch_add(1, std::memory_order_release);
    queue.passed.notify_all();
  }
  return true;
}

void ParallelExecutor::finish_queued(const LaneQueue& queue, Stream& stream) {
  try {
    plan_.wait(stream);  // after a failure too: queued work uses the plan's memory
  } catch (...) {
    fail(std::current_exception(), queue);
  }
}

void ParallelExecutor::run_lane(int lane, Stream& stream) {
  LaneQueue& queue = *lanes_[static_cast<std::size_t>(lane)];
  if (!queues_) {
    run_nodes(queue, stream);
    return;
  }
  try {
    device_.bind_thread();
    if (lane > 0) start_->wait_on(stream);
  } catch (...) {  // another lane's kernel may have broken the GPU
    return fail(std::current_exception(), queue);
  }
  run_nodes(queue, stream);
  finish_queued(queue, stream);
}

void ParallelExecutor::read_times() {
  for (std::size_t i = 0; i < times_.size(); ++i)
    times_[i] = {node_times_[2 * i]->seconds_since(*start_), node_times_[2 * i + 1]->seconds_since(*start_)};
}

void ParallelExecutor::fail(std::exception_ptr error, const LaneQueue& queue) {
  const bool first = !failed_.exchange(true);
  std::string what = "an unknown error";
  bool heard = false;
  try {
    std::rethrow_exception(error);
  } catch (const PeerError& e) {
    heard = true;
    what = e.what();
  } catch (const std::exception& e) {
    what = e.what();
  } catch (...) {
  }
  {
    // Another lane may hear from its communicator that this rank has failed before the failed lane gets here. The
    // original error, which names the node, then replaces the one that was only heard of.
    const std::lock_guard lock(error_mutex_);
    if (!error_ || (only_heard_ && !heard)) {
      error_ = error;
      only_heard_ = heard;
    }
  }
  if (first) {
    if (on_error_ && *on_error_) (*on_error_)(fmt::format("lane {}, {}", name_of(queue.lane), what));
  }
  for (const auto& other : lanes_) {
    other->passed.fetch_add(everything, std::memory_order_release);
    other->passed.notify_all();
  }
}

void ParallelExecutor::serve(int lane) {
  if (lanes_[static_cast<std::size_t>(lane)]->lane != Lane::update) put_communication_first();
  std::uint32_t seen = 0;
  while (true) {
    wait_until(round_, seen + 1);
    seen = round_.load(std::memory_order_acquire);
    if (stop_.load()) return;
    run_lane(lane, *lanes_[static_cast<std::size_t>(lane)]->stream);
    running_.fetch_add(1, std::memory_order_release);
    running_.notify_all();
  }
}

void ParallelExecutor::run_step(const std::function<void(const std::string&)>& on_error) {
  for (const auto& lane : lanes_) lane->passed.store(0, std::memory_order_relaxed);
  failed_.store(false);
  error_ = nullptr;
  only_heard_ = false;
  on_error_ = &on_error;
  running_.store(0);
  plan_.queue_inputs(stream_);  // before start_, which every other lane waits for
  begin_ = now();
  if (queues_) start_->record(stream_);
  round_.fetch_add(1, std::memory_order_release);
  round_.notify_all();
  run_lane(0, stream_);
  wait_until(running_, static_cast<std::uint32_t>(lanes_.size()) - 1);
  on_error_ = nullptr;
  if (error_) std::rethrow_exception(error_);
  plan_.queue_results(stream_);
  stream_.synchronize();
  if (queues_) read_times();
}

std::string ParallelExecutor::launch_text() const {
  if (!queues_) return "";
  return fmt::format("a thread per lane queues a step, not a CUDA graph: {}", why_no_graph_);
}

std::string ParallelExecutor::status() const {
  std::string text;
  for (const auto& lane : lanes_) {
    const std::uint32_t passed = lane->passed.load(std::memory_order_relaxed) % everything;
    if (!text.empty()) text += "; ";
    text += fmt::format("{} ", name_of(lane->lane));
    text += passed < lane->nodes.size()
                ? fmt::format("at {} ({} of {} done)",
                              plan_.plan().name_of(plan_.plan().nodes[lane->nodes[passed].node.index()]), passed,
                              lane->nodes.size())
                : "done";
  }
  return text;
}

}  // namespace weft
