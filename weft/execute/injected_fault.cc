#include "weft/execute/injected_fault.h"

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
      while (true) {  // until the others have given up: a thread cannot be killed alone
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
  const std::string kind = text.substr(0, at);
  fault.kind = kind == "error"    ? InjectedFault::Kind::error
               : kind == "stall"  ? InjectedFault::Kind::stall
               : kind == "kill"   ? InjectedFault::Kind::kill
               : kind == "counts" ? InjectedFault::Kind::counts
                                  : InjectedFault::Kind::none;
  if (fault.kind == InjectedFault::Kind::none || at == std::string::npos || colon == std::string::npos ||
      !parse_int(text.substr(at + 1, colon - at - 1), fault.node) || !parse_int(text.substr(colon + 1), fault.rank) ||
      fault.node < 0 || fault.rank < 0)
    throw UserError(
        "--inject-fault '{}' is not KIND@NODE:RANK with KIND error, stall, kill or counts, as in error@37:1", text);
  return fault;
}

}  // namespace weft
