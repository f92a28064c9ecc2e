// The world that make_nccl_world (weft/comm/nccl_world.h) makes, around a given NCCL.
#pragma once

#include "weft/comm/nccl/library.h"
#include "weft/comm/world.h"

namespace weft::nccl {

std::unique_ptr<World> make_world(World& base, std::shared_ptr<const Library> library);

}  // namespace weft::nccl
