// A deliberate fault at one node of one rank, to test that a run ends cleanly when something breaks (docs/errors.md).
#pragma once

#include <string>

#include "weft/base/ids.h"
#include "weft/comm/world.h"
#include "weft/plan/plan.h"

namespace weft {

struct InjectedFault {
  // error: the node throws. stall: it never ends. kill: SIGKILL ends the process. counts: an exchange expects one
  // element fewer than its peer sends.
  enum class Kind : unsigned char { none, error, stall, kill, counts } kind = Kind::none;
  std::int64_t node = -1;
  std::int64_t rank = 0;
  std::int64_t step = 1;  // of the process; the first is 1

  bool strikes(NodeId id, std::int64_t now) const { return kind != Kind::none && id.value == node && now == step; }
  // Every kind but `counts`, which the exchange itself carries out. world: null for one rank.
  void strike(const World* world) const;
};

// "error@37:1": kind, node and rank; "error@37:1:5": at the fifth step. UserError for anything else.
InjectedFault parse_fault(const std::string& text);

// UserError if the fault cannot occur: there is no such rank or node, or the node of `counts` exchanges no tokens.
void require_target(const InjectedFault& fault, const Plan& plan, std::int64_t ranks);

}  // namespace weft
