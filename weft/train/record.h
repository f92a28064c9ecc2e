// What a step really did: the times of every rank's nodes, on one clock.
#pragma once

#include "weft/plan/timeline.h"
#include "weft/train/session.h"

namespace weft {

// Of the last step, whose executor kept its times. With several ranks all call it; rank 0 gets the timeline of all.
Timeline record_timeline(Session& session, const std::string& title);

}  // namespace weft
