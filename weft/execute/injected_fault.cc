#include "weft/execute/injected_fault.h"

#include <algorithm>
#include <chrono>
#include <csignal>
#include <thread>

#include "weft/base/error.h"
#include "weft/base/text.h"

namespace weft {

void InjectedFault::strike(const World* world) const {
  switch (kind) {
    case Kind::error:
      throw RunError("injected fault");
    case Kind::stall:
      while (true) {  // until the other ranks give up: a single thread cannot be killed
        if (world) world->throw_if_ended();
        std::this_thread::sleep_for(std::chrono::milliseconds(10));
      }
    case Kind::kill:
      std::raise(SIGKILL);
      break;
    case Kind::none:
    case Kind::counts:
      break;
  }
}

InjectedFault parse_fault(const std::string& text) {
  InjectedFault fault;
  const std::size_t at = text.find('@'), colon = text.find(':', at == std::string::npos ? 0 : at);
  const std::string kind = text.substr(0, at), place = text.substr(std::min(colon, text.size() - 1) + 1);
  const std::size_t second = place.find(':');
  fault.kind = kind == "error"    ? InjectedFault::Kind::error
               : kind == "stall"  ? InjectedFault::Kind::stall
               : kind == "kill"   ? InjectedFault::Kind::kill
               : kind == "counts" ? InjectedFault::Kind::counts
                                  : InjectedFault::Kind::none;
  if (fault.kind == InjectedFault::Kind::none || at == std::string::npos || colon == std::string::npos ||
      !parse_int(text.substr(at + 1, colon - at - 1), fault.node) || !parse_int(place.substr(0, second), fault.rank) ||
      (second != std::string::npos && !parse_int(place.substr(second + 1), fault.step)) || fault.node < 0 ||
      fault.rank < 0 || fault.step < 1)
    throw UserError("`fault` '{}': not KIND@NODE:RANK[:STEP], as in error@37:1; KIND is error, stall, kill or counts",
                    text);
  return fault;
}

void require_target(const InjectedFault& fault, const Plan& plan, std::int64_t ranks) {
  if (fault.kind == InjectedFault::Kind::none) return;
  if (fault.rank >= ranks) throw UserError("`fault`: there is no rank {}; ranks are 0 to {}", fault.rank, ranks - 1);
  if (fault.node >= std::ssize(plan.nodes))
    throw UserError("`fault`: there is no node {}; `weft plan` lists 0 to {}", fault.node, plan.nodes.size() - 1);
  if (fault.kind != InjectedFault::Kind::counts) return;
  const auto exchanges = [&](const Node& node) {
    const auto collectives = plan.collectives_of(node);
    return std::any_of(collectives.begin(), collectives.end(),
                       [](const NodeCollective& c) { return c.kind == CollectiveKind::all_to_all; });
  };
  if (const Node& node = plan.nodes[static_cast<std::size_t>(fault.node)]; !exchanges(node)) {
    const auto first = std::find_if(plan.nodes.begin(), plan.nodes.end(), exchanges);
    throw UserError("`fault`: node {}, {}, exchanges no tokens, so it has no counts to get wrong; {}", fault.node,
                    plan.name_of(node),
                    first == plan.nodes.end()
                        ? "no node of this run does"
                        : fmt::format("node {}, {}, does", first - plan.nodes.begin(), plan.name_of(*first)));
  }
}

}  // namespace weft
