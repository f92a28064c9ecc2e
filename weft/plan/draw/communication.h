// What counts as communication where times are compared with computation.
#pragma once

#include <optional>

#include "weft/model/module.h"

namespace weft {

// Of one lane, or of all. A receive between stages is posted ahead of time and mostly waits for the other stage, as does a
// sum over stages: among all lanes that counts as idle.
inline bool counts_as_communication(Lane own, std::optional<Lane> lane) {
  return lane ? own == *lane : own != Lane::pipe_in && own != Lane::back_in && own != Lane::stage_sums;
}

}  // namespace weft
