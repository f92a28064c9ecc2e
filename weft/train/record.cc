#include "weft/train/record.h"

#include <algorithm>
#include <cmath>

#include "weft/base/error.h"

namespace weft {

Timeline record_timeline(Session& session, const std::string& title) {
  const Plan& plan = session.plan().plan();
  const MemoryPlan& memory = session.plan().memory();
  const std::vector<NodeTime>& times = session.executor()->times();
  WEFT_CHECK(times.size() == plan.nodes.size(), "the executor kept no times of the step");
  // Nanoseconds on this machine's clock: the times count from when the step began here.
  std::vector<std::int64_t> words;
  for (const NodeTime& t : times)
    for (double seconds : {t.start, t.end})
      words.push_back(std::llround((seconds + session.executor()->began()) * 1e9));
  const std::vector<std::int64_t> all = session.ranks().gather(words);
  Timeline timeline;
  timeline.title = title;
  timeline.ranks = static_cast<int>(session.options().layout.ranks());
  const std::vector<std::int32_t> labels = add_labels(timeline, plan);
  const auto resident = static_cast<double>(memory.resident());
  timeline.memory.assign(static_cast<std::size_t>(timeline.ranks), {{0, resident}});
  timeline.reserved = static_cast<double>(memory.total());
  const std::int64_t origin = *std::min_element(all.begin(), all.end());
  for (int rank = 0; rank < timeline.ranks; ++rank)
    for (std::size_t i = 0; i < plan.nodes.size(); ++i) {
      const std::size_t at = static_cast<std::size_t>(rank) * words.size() + 2 * i;
      const auto seconds = [&](std::size_t k) { return static_cast<double>(all[k] - origin) * 1e-9; };
      timeline.events.push_back({rank, labels[i], plan.nodes[i].micro_batch, seconds(at), seconds(at + 1)});
      if (plan.nodes[i].lane == Lane::compute)
        timeline.memory[static_cast<std::size_t>(rank)].push_back(
            {seconds(at), resident + static_cast<double>(memory.live[i])});
    }
  return timeline;
}

}  // namespace weft
