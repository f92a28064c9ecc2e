#include "weft/train/library_bytes.h"

#include <algorithm>
#include <fstream>

#include <unistd.h>

namespace weft {

namespace {

std::int64_t resident_bytes() {
  std::ifstream statm("/proc/self/statm");
  std::int64_t total = 0, resident = 0;
  statm >> total >> resident;
  return resident * ::sysconf(_SC_PAGESIZE);
}

}  // namespace

std::int64_t measure_library_bytes(Session& session) {
  session.flush_updates();  // gradients are overwritten here
  const PreparedPlan& train = session.plan();
  session.storage().touch_memory();
  train.touch_memory();
  const Device& device = session.device();
  const auto used = [&] {
    return device.asynchronous() ? -static_cast<std::int64_t>(device.free_bytes()) : resident_bytes();
  };
  const std::int64_t before = used();
  session.inputs().write_zeros(train, 0);
  train.queue_inputs(session.stream());
  const std::vector<Node>& nodes = train.plan().nodes;
  for (std::size_t i = 0; i < nodes.size(); ++i)
    if (nodes[i].micro_batch == 0) train.run_node(NodeId(static_cast<std::int64_t>(i)), session.stream());
  session.stream().synchronize();
  return std::max<std::int64_t>(0, used() - before);
}

}  // namespace weft
