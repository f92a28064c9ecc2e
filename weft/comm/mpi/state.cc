#include "weft/comm/mpi/state.h"

#include <algorithm>

#include "weft/base/error.h"

namespace weft {

void MpiState::wait(MpiRequests& requests, const std::function<std::string()>& what,
                    const std::function<RankId(int)>& world_rank) {
  const Nanoseconds begin = now_ns();
  const double limit = timeout.load();
  const auto outcome = requests.wait(control.ended(), begin + static_cast<Nanoseconds>(std::min(limit, 1e9) * 1e9));
  if (outcome == MpiRequests::Outcome::done) return;
  if (outcome == MpiRequests::Outcome::late) {
    std::vector<RankId> missing;
    for (const int peer : requests.pending_peers()) missing.push_back(world_rank(peer));
    const double waited = static_cast<double>(now_ns() - begin) * 1e-9;
    const std::string report = timeout_report(what(), waited, limit, missing, control.ask_standings(answer_seconds));
    const bool first = control.fail(report);
    requests.abandon();
    if (first) throw RunError(report);
  } else {
    requests.abandon();
  }
  control.throw_if_ended();
}

}  // namespace weft
