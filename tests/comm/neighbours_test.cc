#include "weft/comm/neighbours.h"

#include <gtest/gtest.h>
#include <sched.h>

#include "weft/comm/local/cluster.h"
#include "weft/device/null/device.h"

namespace weft {
namespace {

RankPlacement placement(char machine, char device, const std::string& cores) {
  RankPlacement made;
  made.machine[0] = machine;
  made.device[0] = device;
  made.cores = Cores(cores);  // the last character is core 0
  return made;
}

TEST(Neighbours, ShareCoresThatSeveralMayUse) {
  // torchrun, or srun without binding: four ranks may run anywhere on eight cores.
  const std::vector<RankPlacement> open(4, placement('a', '0', "11111111"));
  EXPECT_EQ(count_neighbours(open, 0).cores, 2);
  EXPECT_EQ(count_neighbours(open, 3).on_machine, 4);
  // mpirun, or srun with --cpu-bind: each has two cores of its own, which are not divided again.
  const std::vector<RankPlacement> bound{placement('a', '0', "00000011"), placement('a', '1', "00001100"),
                                         placement('a', '2', "00110000"), placement('a', '3', "11000000")};
  for (int rank = 0; rank < 4; ++rank) EXPECT_EQ(count_neighbours(bound, rank).cores, 2);
  // Bound to sockets, two ranks to each.
  const std::vector<RankPlacement> sockets{placement('a', '0', "00001111"), placement('a', '0', "00001111"),
                                           placement('a', '0', "11110000"), placement('a', '0', "11110000")};
  for (int rank = 0; rank < 4; ++rank) EXPECT_EQ(count_neighbours(sockets, rank).cores, 2);
  // More ranks than cores; and a share with rounding.
  EXPECT_EQ(count_neighbours(std::vector<RankPlacement>(3, placement('a', '0', "1")), 1).cores, 1);
  EXPECT_EQ(count_neighbours(std::vector<RankPlacement>(3, placement('a', '0', "111111")), 1).cores, 2);
}

TEST(Neighbours, OfOtherMachinesDoNotCount) {
  const std::vector<RankPlacement> placements{placement('a', '0', "11"), placement('b', '0', "11"),
                                              placement('b', '1', "11"), placement('b', '1', "11")};
  EXPECT_EQ(count_neighbours(placements, 0).on_machine, 1);
  EXPECT_EQ(count_neighbours(placements, 0).cores, 2);
  EXPECT_EQ(count_neighbours(placements, 1).on_machine, 3);
  EXPECT_EQ(count_neighbours(placements, 1).on_device, 1);
  EXPECT_EQ(count_neighbours(placements, 3).on_device, 2);
  EXPECT_EQ(count_neighbours(placements, 3).cores, 1);
}

TEST(Neighbours, AreExchangedByAllRanks) {
  LocalCluster cluster(3);
  cluster.run([](World& world) {
    const NullDevice device;
    const Neighbours found = find_neighbours(world, device);
    EXPECT_EQ(found.on_machine, 3);
    EXPECT_EQ(found.on_device, 3);
    EXPECT_EQ(found.cores, std::max(1, usable_core_count() / 3));
  });
}

TEST(Neighbours, CoresAreThoseThisProcessMayUse) {
  cpu_set_t before, one;
  ASSERT_EQ(sched_getaffinity(0, sizeof(before), &before), 0);
  int core = 0;
  while (!CPU_ISSET(core, &before)) ++core;
  CPU_ZERO(&one);
  CPU_SET(core, &one);
  ASSERT_EQ(sched_setaffinity(0, sizeof(one), &one), 0);
  EXPECT_EQ(usable_core_count(), 1);
  EXPECT_TRUE(usable_cores()[static_cast<std::size_t>(core)]);
  ASSERT_EQ(sched_setaffinity(0, sizeof(before), &before), 0);
  EXPECT_EQ(usable_core_count(), CPU_COUNT(&before));
}

}  // namespace
}  // namespace weft
