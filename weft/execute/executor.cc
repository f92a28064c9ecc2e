#include "weft/execute/executor.h"

#include <algorithm>

#include "weft/base/error.h"
#include "weft/execute/parallel_executor.h"
#include "weft/execute/stream_executor.h"

namespace weft {

namespace {

// Why the steps of a plan cannot be queued by one thread; "" if they can.
std::string why_threads(const PreparedPlan& plan) {
  const std::vector<Node>& nodes = plan.plan().nodes;
  if (std::any_of(nodes.begin(), nodes.end(), [](const Node& node) { return node.kind == NodeKind::wait_counts; }))
    return "the host waits for the numbers of rows that ranks exchange";
  for (const Communicator* communicator : plan.communicators())
    if (std::string why = communicator->why_not_recordable(); !why.empty()) return why;
  return "";
}

}  // namespace

std::unique_ptr<Executor> make_executor(const PreparedPlan& plan, Device& device, Stream& stream,
                                        const ExecutorOptions& options, const StreamMemory& memory) {
  if (!options.side_by_side || !device.asynchronous())
    return std::make_unique<ParallelExecutor>(
        plan, device, stream, device.asynchronous() ? "the executor is serial" : "",
        device.asynchronous() ? std::vector<double>{} : options.least_seconds, options.side_by_side);
  WEFT_CHECK(options.least_seconds.empty(), "{} queues its work: nodes cannot be made longer", device.name());
  const std::string why = why_threads(plan);
  if (why.empty()) return std::make_unique<StreamExecutor>(plan, device, stream, options, memory);
  return std::make_unique<ParallelExecutor>(plan, device, stream, why);
}

}  // namespace weft
