// One self-contained HTML page that draws timelines: the lanes of every rank over time, what of the communication is
// hidden behind computation, memory, and what every node does. It loads nothing, from the network or from disk.
// The page's own files are in weft/plan/page/; how to use it is in docs/timeline.md.
#pragma once

#include <string>

#include "weft/plan/draw/timeline.h"

namespace weft {

// With `actual`, the two are drawn one below the other with a common time axis. A million events are fine: an event
// takes about ten bytes, and ranks that do the same at the same times share theirs.
std::string timeline_page(const Timeline& plan, const Timeline* actual = nullptr);

}  // namespace weft
