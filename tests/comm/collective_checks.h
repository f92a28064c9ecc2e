// Every collective of a world, checked against values computed without communication. Shared by the tests of local
// ranks and by the program that runs under mpirun.
#pragma once

#include <cstdint>

#include "weft/comm/world.h"

namespace weft {

// Runs all operations on several groups in all dtypes; throws RunError at the first wrong element. Returns a hash of
// all that this rank received, by which implementations are compared bit for bit.
std::uint64_t check_collectives(World& world);

// The same on one group in one dtype.
std::uint64_t check_collectives(Communicator& group, DType dtype);

}  // namespace weft
