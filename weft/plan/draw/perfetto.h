// A timeline as a Chrome trace (JSON), for ui.perfetto.dev and chrome://tracing: a process for each rank, a thread for
// each lane, a counter for memory, and everything known of a node in its arguments.
#pragma once

#include <string>

#include "weft/plan/draw/timeline.h"

namespace weft {

// Buffers and parameters are written up to `detailed_events` events; beyond, a file with them would be too large to be
// opened, and "otherData" says that they were left out.
std::string perfetto_trace(const Timeline& timeline, std::size_t detailed_events = 250'000);

}  // namespace weft
