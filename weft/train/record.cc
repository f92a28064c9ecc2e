#include "weft/train/record.h"

#include <algorithm>
#include <cmath>
#include <map>

#include "weft/base/error.h"

namespace weft {

Timeline record_timeline(Session& session, const std::string& title) {
  const Plan& plan = session.plan().plan();
  const std::vector<NodeTime>& times = session.executor()->times();
  WEFT_CHECK(times.size() == plan.nodes.size(), "the executor kept no times of the step");
  // Nanoseconds on this machine's clock: the times count from when the step began here.
  std::vector<std::int64_t> words;
  for (const NodeTime& t : times)
    for (double seconds : {t.start, t.end})
      words.push_back(std::llround((seconds + session.executor()->began()) * 1e9));
  // Plans of other stages have other numbers of nodes.
  const auto own_count = std::ssize(words);
  const std::vector<std::int64_t> counts = session.ranks().gather(std::span(&own_count, 1));
  const auto most = static_cast<std::size_t>(*std::max_element(counts.begin(), counts.end()));
  words.resize(most, words.empty() ? 0 : words.front());
  const std::vector<std::int64_t> all = session.ranks().gather(words);
  Timeline timeline;
  timeline.title = title;
  timeline.ranks = static_cast<int>(session.options().layout.ranks());
  timeline.memory.resize(static_cast<std::size_t>(timeline.ranks));
  const std::int64_t origin = *std::min_element(all.begin(), all.end());
  const auto add_rank = [&](int rank, const Plan& of_rank, const MemoryPlan& memory,
                            const std::vector<std::int32_t>& labels) {
    const auto resident = static_cast<double>(memory.resident());
    std::vector<MemoryPoint>& points = timeline.memory[static_cast<std::size_t>(rank)];
    points.push_back({0, resident});
    timeline.reserved = std::max(timeline.reserved, static_cast<double>(memory.total()));
    for (std::size_t i = 0; i < of_rank.nodes.size(); ++i) {
      const std::size_t at = static_cast<std::size_t>(rank) * most + 2 * i;
      const auto seconds = [&](std::size_t k) { return static_cast<double>(all[k] - origin) * 1e-9; };
      timeline.events.push_back({rank, labels[i], of_rank.nodes[i].micro_batch, seconds(at), seconds(at + 1)});
      if (of_rank.nodes[i].lane == Lane::compute)
        points.push_back({seconds(at), resident + static_cast<double>(memory.live[i])});
    }
  };
  if (session.options().layout.stage_count() == 1) {
    const std::vector<std::int32_t> labels = add_labels(timeline, plan);
    for (int rank = 0; rank < timeline.ranks; ++rank) add_rank(rank, plan, session.plan().memory(), labels);
    return timeline;
  }
  const LayoutPlans plans(training_step(session.options()));
  timeline.stages = plans.stages();
  std::map<const StepPlan*, std::vector<std::int32_t>> labels;
  for (int rank = 0; rank < timeline.ranks; ++rank) {
    const StepPlan& step = plans.step_of(RankId(rank));
    const auto [at, is_new] = labels.try_emplace(&step);
    if (is_new) at->second = add_labels(timeline, step.plan);
    add_rank(rank, step.plan, step.memory, at->second);
  }
  return timeline;
}

}  // namespace weft
