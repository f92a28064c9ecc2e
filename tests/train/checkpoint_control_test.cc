// What a run begins with, where ranks look for it together.
#include "weft/train/checkpoint_control.h"

#include <filesystem>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/data/temporary_folder.h"
#include "tests/execute/ranks.h"
#include "weft/base/error.h"
#include "weft/base/file.h"
#include "weft/checkpoint/run_checkpoint.h"
#include "weft/train/last_complete.h"

namespace weft {
namespace {

using testing::HasSubstr;

RankCase two_ranks() {
  RankCase c = small_case("[*E]-");
  c.ranks = 2;
  c.expert_ranks = 2;
  c.micro_batches = 1;
  c.dtype = DType::f32;
  return c;
}

// Every rank sees a folder of its own, so that what one of them reads shows.
class LastComplete : public testing::Test {
 protected:
  LastComplete() {
    on_ranks([&](Session& session) {
      session.initialise_parameters(5);
      for (const std::int64_t iteration : {1, 2})
        save_checkpoint(session, {.dir = folder_.file("0"), .side_files = {{"config.json", "{}"}}},
                        {iteration, 4 * iteration, iteration}, "{}");
    });
    std::filesystem::copy(folder_.file("0"), folder_.file("1"), std::filesystem::copy_options::recursive);
  }
  static void on_ranks(const std::function<void(Session&)>& body) {
    const RankCase c = two_ranks();
    LocalCluster(c.ranks).run([&](World& world) {
      CpuDevice device;
      Session session(device, options_of(c, &world));
      body(session);
    });
  }
  // Seen by its checksum alone, and only where everything is verified.
  void damage(const std::string& rank) {
    const std::string iteration = folder_.file(rank) + "/iter_0000002";
    write_file_atomically(iteration + "/config.json", "[]");
    EXPECT_NE(message_of<UserError>([&] { RunCheckpoint(iteration).verify(); }), "");
  }
  void expect_loaded(std::int64_t iteration) {
    on_ranks([&](Session& session) {
      TrainOptions options;
      options.checkpoint.load = folder_.file(std::to_string(session.options().layout.rank().value));
      options.checkpoint.load_last_complete = true;
      CheckpointControl control(options, session, nullptr);
      EXPECT_EQ(control.begin([](const std::string&) {}).iteration, iteration);
    });
  }
  TemporaryFolder folder_;
};

TEST_F(LastComplete, IsVerifiedByTheFirstRankAlone) {
  expect_loaded(2);
  damage("1");
  expect_loaded(2);
}

TEST_F(LastComplete, IsThatOfTheFirstRank) {
  damage("0");
  expect_loaded(1);
}

// A word for every tensor that is verified, so that no rank waits longer than for one of them.
TEST_F(LastComplete, IsWaitedForWordByWord) {
  damage("1");
  const RankCase c = two_ranks();
  LocalCluster(c.ranks).run([&](World& world) {
    const RankExchange ranks(&world);
    const std::string dir = folder_.file(std::to_string(world.rank().value));
    const auto place = find_last_complete(ranks, world.rank(), dir, {}, std::chrono::milliseconds(0));
    ASSERT_TRUE(place);
    EXPECT_EQ(place->folder, dir + "/iter_0000002");
    EXPECT_EQ(find_last_complete(ranks, world.rank(), place->folder, {})->folder, place->folder);  // itself
    EXPECT_FALSE(find_last_complete(ranks, world.rank(), dir + "/nowhere", {}));
  });
}

TEST_F(LastComplete, MustBeSeenByAllRanks) {
  std::filesystem::remove_all(folder_.file("1") + "/iter_0000002");
  EXPECT_THAT(message_of<UserError>([&] { expect_loaded(2); }),
              HasSubstr("rank 1 does not see " + folder_.file("1") +
                        "/iter_0000002, which rank 0 goes on from; all ranks must see the same folder"));
}

}  // namespace
}  // namespace weft
