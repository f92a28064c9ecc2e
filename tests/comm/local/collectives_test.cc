#include <thread>

#include <gtest/gtest.h>

#include "tests/comm/collective_checks.h"
#include "tests/comm/ranks.h"
#include "weft/comm/local/cluster.h"

namespace weft {
namespace {

class LocalRanks : public testing::TestWithParam<int> {};

TEST_P(LocalRanks, EveryCollectiveInEveryDtypeOnSeveralGroups) {
  LocalCluster cluster(GetParam());
  cluster.run([](World& world) { check_collectives(world); });
}

TEST_P(LocalRanks, AnEmulatedNetworkChangesNoBit) {
  std::vector<std::uint64_t> plain(static_cast<std::size_t>(GetParam())), slowed = plain;
  const auto hashes = [&](std::vector<std::uint64_t>& to, const LocalOptions& options) {
    LocalCluster(GetParam(), options).run([&](World& world) {
      const auto group = world.make_group(ranks_below(world.size()), "all");
      to[world.rank().index()] = check_collectives(*group, DType::bf16);
    });
  };
  hashes(plain, {});
  hashes(slowed, {.network = EmulatedNetwork{.latency = 20e-6, .bandwidth = 1e9}});
  EXPECT_EQ(plain, slowed);
  EXPECT_NE(plain[0], 0u);
}

// Lanes: several communicators over the same ranks, each used by its own thread, concurrently and in no common order.
TEST_P(LocalRanks, LanesAndGroupsAtOnce) {
  const int lanes = 4;
  LocalCluster cluster(GetParam());
  cluster.run([&](World& world) {
    std::vector<std::unique_ptr<Communicator>> groups;
    for (int lane = 0; lane < lanes; ++lane)
      groups.push_back(
          world.make_group(ranks_below(world.size()), lane < 2 ? "same name" : "lane " + std::to_string(lane)));
    std::vector<RankId> pair{world.rank()};  // neighbours 2k and 2k+1, on an additional lane
    const RankId other(world.rank().value ^ 1);
    if (other.value < world.size()) pair.insert(other < pair[0] ? pair.begin() : pair.end(), other);
    groups.push_back(world.make_group(pair, "pair"));
    std::vector<std::string> errors(groups.size());
    std::vector<std::thread> threads;
    for (std::size_t lane = 0; lane < groups.size(); ++lane) {
      threads.emplace_back([&, lane] {
        try {
          check_collectives(*groups[lane], lane % 2 == 0 ? DType::f32 : DType::i64);
        } catch (const std::exception& error) {
          errors[lane] = error.what();
          world.abort(error.what());
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
    for (const std::string& error : errors)
      if (!error.empty()) throw RunError(error);
  });
}

INSTANTIATE_TEST_SUITE_P(Sizes, LocalRanks, testing::Values(1, 2, 3, 4, 7), testing::PrintToStringParamName());

TEST(LocalWorld, RanksAndMembersAreNumberedSeparately) {
  LocalCluster cluster(4);
  cluster.run([](World& world) {
    ASSERT_EQ(world.size(), 4);
    if (world.rank().value == 0 || world.rank().value == 2) return;
    const RankId members[] = {RankId(3), RankId(1)};
    const auto group = world.make_group(members, "odd");
    EXPECT_EQ(group->size(), 2);
    EXPECT_EQ(group->rank(), world.rank().value == 3 ? 0 : 1);
    EXPECT_EQ(group->name(), "odd");
    EXPECT_EQ(group->members()[1], RankId(1));
  });
}

TEST(LocalWorld, TwoClustersInOneProcessDoNotKnowOfEachOther) {
  LocalCluster healthy(2), failing(2);
  std::thread other([&] {
    EXPECT_THROW(failing.run([](World& world) {
      HostStream stream;
      const auto group = world.make_group(ranks_below(2), "all");
      if (world.rank().value == 1) throw RunError("only here");
      group->barrier(stream);
    }),
                 RunError);
  });
  healthy.run([](World& world) { check_collectives(*world.make_group(ranks_below(2), "all"), DType::f64); });
  other.join();
}

TEST(LocalWorld, ManySmallCallsInARow) {
  LocalCluster cluster(3);
  cluster.run([](World& world) {
    HostStream stream;
    const auto group = world.make_group(ranks_below(3), "all");
    for (int i = 0; i < 2000; ++i) {
      const HostTensor value(std::vector<std::int64_t>{world.rank().value + i});
      group->all_reduce(stream, value, value, Reduction::sum);
      ASSERT_EQ(value.values<std::int64_t>()[0], 3 * i + 3);
    }
  });
}

}  // namespace
}  // namespace weft
