// A self-contained HTML page that draws timelines: the lanes of every rank over time, how much communication is hidden
// behind computation, memory, and what every node does. It loads nothing from the network or from disk. Its source
// files are in weft/plan/draw/page/; docs/timeline.md describes how to use it.
#pragma once

#include <string>

#include "weft/plan/draw/timeline.h"

namespace weft {

// With `actual`, the two are drawn one below the other with a common time axis. A million events are fine: an event
// takes about ten bytes, and ranks that do the same at the same times share their events.
std::string timeline_page(const Timeline& plan, const Timeline* actual = nullptr);

}  // namespace weft
