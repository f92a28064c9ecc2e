// Ranks on GPUs: NCCL moves what lies in their memory, another world everything else. libnccl.so.2 is loaded at run
// time, and no header of NCCL or CUDA is needed to build this.
#pragma once

#include <memory>
#include <string>

#include "weft/comm/world.h"

namespace weft {

// A world of the same ranks as `base`, which outlives it. Groups over host memory, failures, timeouts and reports are
// the base's; groups over the memory of a GPU use NCCL. Every rank makes one. UserError where NCCL does not load.
std::unique_ptr<World> make_nccl_world(World& base);

// What `weft devices` says about NCCL: "2.30.7 (FILE)", or why there is none.
std::string nccl_report();

}  // namespace weft
