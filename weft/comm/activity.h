// What a rank is doing: its status and the calls its communicators are in. For reports; thread-safe.
#pragma once

#include <functional>
#include <mutex>
#include <string>
#include <vector>

#include "weft/comm/communicator.h"

namespace weft {

class Activity {
 public:
  void set_status(std::function<std::string()> status);
  void add(const Communicator* group);
  void remove(const Communicator* group);
  // "layer 2, dispatch; in all_to_all (call 7) of group 'ep'"
  std::string text() const;

 private:
  mutable std::mutex mutex_;
  std::function<std::string()> status_;
  std::vector<const Communicator*> groups_;
};

// "waited 2.0 s in all_gather (call 3) of group 'dp' for ranks 1 and 2 (the timeout is 2 s)", then a line per rank.
// `what` is the part after "in"; `activities` holds the text of each rank of the world, empty if it did not answer.
std::string timeout_report(const std::string& what, double waited, double timeout, std::span<const RankId> missing,
                           std::span<const std::string> activities);

}  // namespace weft
