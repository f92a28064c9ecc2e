// The times that the nodes of a step really took, on all ranks and one clock.
#pragma once

#include "weft/plan/draw/timeline.h"
#include "weft/train/session.h"

namespace weft {

// Of the last step, whose executor must have kept its times. Collective over all ranks; rank 0 gets the timeline of all.
Timeline record_timeline(Session& session, const std::string& title);

}  // namespace weft
