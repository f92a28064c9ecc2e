// Every collective of a world, checked against values computed without communication. Shared by the tests of all
// kinds of ranks, in host and device memory.
#pragma once

#include <cstdint>

#include "weft/comm/world.h"

namespace weft {

// Runs all operations on several groups in all dtypes; throws RunError at the first wrong element. Returns a hash of
// everything this rank received, to compare implementations bit for bit.
// device: whose memory to use; null for host memory.
std::uint64_t check_collectives(World& world, Device* device = nullptr);

// The same on one group in one dtype.
std::uint64_t check_collectives(Communicator& group, DType dtype, Device* device = nullptr);

}  // namespace weft
