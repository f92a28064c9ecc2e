// A timeline as a Chrome trace (JSON), for ui.perfetto.dev and chrome://tracing: a process per rank, a thread per lane,
// a counter for memory, and everything known about a node in its arguments.
#pragma once

#include <string>

#include "weft/plan/draw/timeline.h"

namespace weft {

// Buffers and parameters are included up to `detailed_events` events. Beyond that the file would be too large to open,
// and "otherData" notes that they were left out.
std::string perfetto_trace(const Timeline& timeline, std::size_t detailed_events = 250'000);

}  // namespace weft
