// Ranks on GPUs: NCCL moves data in GPU memory, another world does everything else. libnccl.so.2 is loaded at run time;
// building needs no NCCL or CUDA headers.
#pragma once

#include <memory>
#include <string>

#include "weft/comm/world.h"

namespace weft {

// A world of the same ranks as `base`, which must outlive it. Groups over host memory, failures, timeouts and reports
// are handled by the base; groups over GPU memory use NCCL. Every rank makes one. UserError if NCCL cannot be loaded.
std::unique_ptr<World> make_nccl_world(World& base);

// What `weft devices` prints about NCCL: "2.30.7 (FILE)", or why there is none.
std::string nccl_report();

}  // namespace weft
