#include "weft/comm/messages.h"

#include <algorithm>
#include <chrono>

#include "weft/base/error.h"

namespace weft {

void finish(Messages& messages, Control& control, const std::function<std::string()>& what,
            const std::function<RankId(int)>& world_rank) {
  constexpr double longest = 1e9;
  const auto begin = std::chrono::steady_clock::now();
  const double limit = control.timeout();
  const Messages::Outcome outcome = messages.wait(std::min(limit, longest));
  if (outcome == Messages::Outcome::done) return;
  if (outcome == Messages::Outcome::late) {
    std::vector<RankId> missing;
    for (const int peer : messages.pending_peers()) missing.push_back(world_rank(peer));
    const double waited = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    const std::string report =
        timeout_report(what(), waited, limit, missing, control.ask_activities(Control::answer_seconds));
    const bool first = control.fail(report);
    messages.abandon();
    if (first) throw RunError(report);
  } else {
    messages.abandon();
  }
  control.throw_if_ended();
}

}  // namespace weft
