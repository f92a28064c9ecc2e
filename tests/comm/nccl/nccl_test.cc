// Groups over NCCL, with a fake NCCL in host memory. tests/device/cuda/nccl_test.cc uses the real one.
#include <atomic>
#include <chrono>
#include <thread>

#include <gtest/gtest.h>

#include "tests/comm/collective_checks.h"
#include "tests/comm/nccl/fake_nccl.h"
#include "tests/comm/queued_device.h"
#include "tests/comm/ranks.h"
#include "weft/comm/local/cluster.h"
#include "weft/comm/nccl/world.h"
#include "weft/comm/nccl_world.h"

namespace weft {
namespace {

bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

// A rank's world, device and stream.
struct Rank {
  World& world;
  QueuedDevice& device;
  Stream& stream;
};

struct Outcome {
  std::vector<std::string> ranks;  // the error of each; "" for success
  std::vector<bool> peer_errors;   // whether it is a PeerError
  std::string run;
  double seconds = 0;
};

// A GPU per rank by default.
Outcome run_ranks(int size, const std::function<void(Rank&)>& body, int version = 23007, bool one_gpu = false) {
  Outcome outcome{std::vector<std::string>(static_cast<std::size_t>(size)),
                  std::vector<bool>(static_cast<std::size_t>(size)), "", 0};
  LocalCluster cluster(size);
  const auto library = fake_nccl(version);
  const int alive_before = FakeNccl::alive();
  const auto begin = std::chrono::steady_clock::now();
  std::mutex mutex;
  try {
    cluster.run([&](World& base) {
      QueuedDevice device(one_gpu ? "gpu" : fmt::format("gpu {}", base.rank().value));
      const std::unique_ptr<World> world = nccl::make_world(base, library);
      const std::unique_ptr<Stream> stream = device.make_stream(1);
      Rank rank{*world, device, *stream};
      try {
        body(rank);
      } catch (const std::exception& error) {
        const std::lock_guard lock(mutex);
        outcome.ranks[base.rank().index()] = error.what();
        outcome.peer_errors[base.rank().index()] = dynamic_cast<const PeerError*>(&error) != nullptr;
        throw;
      }
    });
  } catch (const std::exception& error) {
    outcome.run = error.what();
  }
  outcome.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  EXPECT_EQ(FakeNccl::misuses(), 0);
  EXPECT_EQ(FakeNccl::alive(), alive_before);
  return outcome;
}

class NcclRanks : public testing::TestWithParam<int> {};

TEST_P(NcclRanks, EveryCollectiveHasTheBitsOfThreadRanks) {
  const auto size = static_cast<std::size_t>(GetParam());
  std::vector<std::uint64_t> local(size), over_nccl(size);
  LocalCluster(GetParam()).run([&](World& world) { local[world.rank().index()] = check_collectives(world); });
  const bool one_gpu = GetParam() == 3;
  const Outcome outcome = run_ranks(
      GetParam(),
      [&](Rank& rank) { over_nccl[rank.world.rank().index()] = check_collectives(rank.world, &rank.device); }, 23007,
      one_gpu);
  EXPECT_EQ(outcome.run, "");
  EXPECT_EQ(over_nccl, local);
}
INSTANTIATE_TEST_SUITE_P(Sizes, NcclRanks, testing::Values(1, 2, 3, 4));

// Everything is queued on three lanes before any result is read, and groups are destroyed while their work is running.
TEST(Nccl, CallsOnlyQueue) {
  const Outcome outcome = run_ranks(3, [](Rank& rank) {
    constexpr int lanes = 3, rounds = 50;
    constexpr std::int64_t count = 100;
    std::vector<HostTensor*> data;
    std::vector<std::unique_ptr<HostTensor>> kept;
    std::vector<std::unique_ptr<Stream>> streams;
    {
      std::vector<std::unique_ptr<Communicator>> groups;
      for (int lane = 0; lane < lanes; ++lane) {
        groups.push_back(rank.world.make_group(ranks_below(3), fmt::format("lane {}", lane), &rank.device));
        streams.push_back(rank.device.make_stream(1));
        kept.push_back(std::make_unique<HostTensor>(
            std::vector<std::int64_t>(static_cast<std::size_t>(count), rank.world.rank().value + lane)));
      }
      for (int round = 0; round < rounds; ++round)
        for (int lane = 0; lane < lanes; ++lane) {
          const auto at =
              static_cast<std::size_t>((lane + rank.world.rank().value) % lanes);  // in a different order on each rank
          groups[at]->all_reduce(*streams[at], *kept[at], *kept[at], Reduction::sum);
        }
    }
    for (int lane = 0; lane < lanes; ++lane) {
      const auto at = static_cast<std::size_t>(lane);
      streams[at]->synchronize();
      std::uint64_t expected =
          static_cast<std::uint64_t>(3 + 3 * lane);  // of all ranks, then three times as much per round
      for (int round = 1; round < rounds; ++round) expected *= 3;
      for (const std::int64_t value : kept[at]->values<std::int64_t>())
        ASSERT_EQ(static_cast<std::uint64_t>(value), expected);
    }
  });
  EXPECT_EQ(outcome.run, "");
}

TEST(Nccl, ReductionsLargerThanTheirScratchMemory) {
  const Outcome outcome = run_ranks(2, [](Rank& rank) {
    const auto group = rank.world.make_group(ranks_below(2), "dp", &rank.device);
    const std::int64_t count = (std::int64_t{36} << 20) / 2 + 3;  // 36 MiB per part, of which 32 fit
    std::vector<float> values;
    for (std::int64_t i = 0; i < count; ++i) values.push_back(static_cast<float>(i + rank.world.rank().value));
    const HostTensor data(values);
    group->all_reduce(rank.stream, data, data, Reduction::sum);
    rank.stream.synchronize();
    const float* got = data.tensor().as<float>();
    for (std::int64_t i = 0; i < count; ++i)
      if (got[i] != static_cast<float>(i) + static_cast<float>(i + 1)) throw RunError("element {} is {}", i, got[i]);
    const HostTensor part(DType::f32, count / 2);
    group->reduce_scatter(rank.stream, data.tensor().slice_rows(0, count / 2 * 2), part, Reduction::max);
    rank.stream.synchronize();
    const std::int64_t mine = rank.world.rank().value * (count / 2);
    for (std::int64_t i = 0; i < count / 2; ++i)
      if (part.tensor().as<float>()[i] != got[mine + i]) throw RunError("part {} is wrong", i);
  });
  EXPECT_EQ(outcome.run, "");
}

TEST(Nccl, HostMemoryGoesThroughTheBase) {
  const Outcome outcome = run_ranks(2, [](Rank& rank) {
    check_collectives(rank.world);
    HostStream stream;
    const auto group = rank.world.make_group(ranks_below(2), "host");
    const HostTensor data(std::vector<std::int32_t>{rank.world.rank().value + 1});
    group->all_reduce(stream, data, data, Reduction::sum);
    EXPECT_EQ(data.values<std::int32_t>()[0], 3);  // done when the call returns
  });
  EXPECT_EQ(outcome.run, "");
}

TEST(NcclTimeout, NamesTheCollectiveAndWhatEachRankIsDoing) {
  const Outcome outcome = run_ranks(3, [](Rank& rank) {
    const auto group = rank.world.make_group(ranks_below(3), "dp", &rank.device);
    rank.world.set_timeout(0.3);
    rank.world.set_status([me = rank.world.rank().value] { return fmt::format("micro-batch {}", me); });
    group->barrier(rank.stream);
    const HostTensor data(DType::f32, 3000), other(DType::f32, 1);
    if (rank.world.rank().value == 1) {
      std::this_thread::sleep_for(std::chrono::milliseconds(900));
      rank.world.throw_if_ended();
    } else {
      group->all_reduce(rank.stream, data, data, Reduction::sum);
      group->broadcast(rank.stream, other, 0);  // queued after it
      rank.stream.synchronize();                // returns because the run ends
      rank.world.throw_if_ended();
    }
  });
  EXPECT_TRUE(contains(outcome.run, "in all_reduce (call 2) of group 'dp' for ranks ")) << outcome.run;
  EXPECT_TRUE(contains(outcome.run, "(the timeout is 0.3 s). What each rank is doing:")) << outcome.run;
  for (const int rank : {0, 2})
    EXPECT_TRUE(contains(
        outcome.run,
        fmt::format("\n  rank {}: micro-batch {}; on the device: all_reduce (call 2) of group 'dp'", rank, rank)))
        << outcome.run;
  EXPECT_TRUE(contains(outcome.run, "\n  rank 1: micro-batch 1\n")) << outcome.run;
  EXPECT_TRUE(outcome.peer_errors[1]);
  EXPECT_NE(outcome.peer_errors[0], outcome.peer_errors[2]);  // one reports, the other gets a PeerError
  EXPECT_LT(outcome.seconds, 3);
}

// Work that waits for other work of the same rank does not time out.
TEST(NcclTimeout, CountsFromWhenTheDeviceStartsTheCollective) {
  const Outcome outcome = run_ranks(2, [](Rank& rank) {
    const auto group = rank.world.make_group(ranks_below(2), "dp", &rank.device);
    rank.world.set_timeout(0.25);
    static_cast<QueuedStream&>(rank.stream).push([] { std::this_thread::sleep_for(std::chrono::milliseconds(600)); });
    const HostTensor data(DType::f32, 3);
    group->all_reduce(rank.stream, data, data, Reduction::sum);
    rank.stream.synchronize();
    rank.world.throw_if_ended();
    rank.world.set_timeout(30);
    group->barrier(rank.stream);
  });
  EXPECT_EQ(outcome.run, "");
}

TEST(NcclTimeout, MismatchedSizesEndInIt) {
  const Outcome outcome = run_ranks(2, [](Rank& rank) {
    const auto group = rank.world.make_group(ranks_below(2), "pipe", &rank.device);
    rank.world.set_timeout(0.2);
    const HostTensor data(DType::f32, 4 + rank.world.rank().value);
    if (rank.world.rank().value == 0)
      group->send(rank.stream, data, 1);
    else
      group->receive(rank.stream, data, 0);
    rank.stream.synchronize();
    rank.world.throw_if_ended();
  });
  EXPECT_TRUE(contains(outcome.run, "in transfer (call 1) of group 'pipe' for rank ")) << outcome.run;
  EXPECT_LT(outcome.seconds, 3);
}

TEST(NcclFailure, OfOneRankEndsAllStreamsOfTheOthers) {
  const Outcome outcome = run_ranks(4, [](Rank& rank) {
    const auto one = rank.world.make_group(ranks_below(4), "one", &rank.device);
    const auto two = rank.world.make_group(ranks_below(4), "two", &rank.device);
    const auto second = rank.device.make_stream(1);
    one->barrier(rank.stream);
    if (rank.world.rank().value == 2) throw UserError("the loss is a potato");
    const HostTensor a(DType::f32, 100), b(DType::f32, 100);
    const auto wait = [&] {  // the queued work uses the tensors
      second->synchronize();
      rank.stream.synchronize();
    };
    try {
      for (int i = 0; i < 5; ++i) {
        one->all_reduce(rank.stream, a, a, Reduction::sum);
        two->all_reduce(*second, b, b, Reduction::sum);
      }
    } catch (const PeerError&) {  // thrown while others still queued
      wait();
      throw;
    }
    wait();
    EXPECT_THROW(one->barrier(rank.stream), PeerError);
    EXPECT_THROW(rank.world.make_group(ranks_below(4), "three", &rank.device), PeerError);
    rank.world.throw_if_ended();
  });
  EXPECT_EQ(outcome.run, "the loss is a potato");
  for (const std::size_t rank : {0, 1, 3}) {
    EXPECT_EQ(outcome.ranks[rank], "rank 2 failed: the loss is a potato");
    EXPECT_TRUE(outcome.peer_errors[rank]);
  }
  EXPECT_LT(outcome.seconds, 3);
}

TEST(NcclFailure, ThatNcclReportsEndsTheRun) {
  const Outcome outcome = run_ranks(2, [](Rank& rank) {
    const auto group = rank.world.make_group(ranks_below(2), "dp", &rank.device);
    group->barrier(rank.stream);
    if (rank.world.rank().value == 1) FakeNccl::report_error(1);
    const HostTensor data(DType::f32, 10);
    if (rank.world.rank().value == 0) group->all_reduce(rank.stream, data, data, Reduction::sum);
    rank.stream.synchronize();
    for (int i = 0; i < 200; ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
      rank.world.throw_if_ended();
    }
  });
  FakeNccl::report_error(-1);
  EXPECT_EQ(outcome.run, "NCCL 2.30.7: remote error: a cable is loose");
  EXPECT_EQ(outcome.ranks[0], "rank 1 failed: NCCL 2.30.7: remote error: a cable is loose");
  EXPECT_LT(outcome.seconds, 2);
}

TEST(NcclMaking, ThatFailsReportsWhy) {
  FakeNccl::fail_init(true);
  const Outcome outcome = run_ranks(2, [](Rank& rank) { rank.world.make_group(ranks_below(2), "dp", &rank.device); });
  FakeNccl::fail_init(false);
  EXPECT_EQ(outcome.run, "NCCL 2.30.7: invalid usage: a cable is loose");
}

TEST(NcclMaking, ThatHangsEndsAtTheTimeout) {
  FakeNccl::hold_init(true);
  const Outcome outcome = run_ranks(2, [](Rank& rank) {
    rank.world.set_timeout(0.2);
    rank.world.make_group(ranks_below(2), "dp", &rank.device);
  });
  EXPECT_TRUE(contains(outcome.run, "in making group 'dp' with NCCL for rank ")) << outcome.run;
  EXPECT_LT(outcome.seconds, 6);
  FakeNccl::hold_init(false);  // releases the two abandoned threads
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
}

TEST(NcclMaking, ThatHangsInConnectingEndsAtTheTimeout) {
  FakeNccl::hold_connect(true);
  const Outcome outcome = run_ranks(3, [](Rank& rank) {
    rank.world.set_timeout(0.2);
    rank.world.make_group(ranks_below(3), "dp", &rank.device);
  });
  FakeNccl::hold_connect(false);
  EXPECT_TRUE(contains(outcome.run, "in connecting group 'dp' for ranks ")) << outcome.run;
  EXPECT_LT(outcome.seconds, 2);
}

TEST(NcclMaking, WithoutARankEndsAtTheTimeoutOfTheBase) {
  const Outcome outcome = run_ranks(2, [](Rank& rank) {
    rank.world.set_timeout(0.2);
    if (rank.world.rank().value == 0) rank.world.make_group(ranks_below(2), "dp", &rank.device);
  });
  EXPECT_TRUE(contains(outcome.run, "of group 'dp' for rank 1 (the timeout is 0.2 s)")) << outcome.run;
}

TEST(NcclMaking, OfSeveralRanksOnOneGpu) {
  const auto make = [](Rank& rank) { rank.world.make_group(ranks_below(4), "dp", &rank.device); };
  EXPECT_EQ(run_ranks(4, make, 22809).run, "");  // a GPU per rank
  EXPECT_EQ(FakeNccl::last_max_blocks(), nccl::Config::unset);
  EXPECT_EQ(run_ranks(4, make, 23000, true).run, "");
  EXPECT_EQ(FakeNccl::last_max_blocks(), 8);
  const Outcome old = run_ranks(4, make, 22809, true);
  for (const std::string& rank : old.ranks)
    EXPECT_EQ(
        rank,
        "group 'dp' has 4 ranks on one GPU, which NCCL 2.28.9 (fake) refuses: start one rank for each GPU, or name "
        "NCCL 2.30 or newer in WEFT_NCCL, or run the ranks of this machine as threads (--ranks), which need no NCCL");
}

// While a kernel waits for another rank, everything that waits for the whole device waits too. So no rank may still
// have work to queue before a collective while another rank's kernel is already running.
TEST(NcclSharedGpu, ThreadsWaitForEachOtherBeforeAnyKernelStarts) {
  const auto started_alone = [](bool one_gpu) {
    std::atomic<bool> arrived{false}, started{false};
    const Outcome outcome = run_ranks(
        2,
        [&](Rank& rank) {
          const auto group = rank.world.make_group(ranks_below(2), "dp", &rank.device);
          const HostTensor data(DType::f32, 100);
          if (rank.world.rank().value == 1) {
            std::this_thread::sleep_for(std::chrono::milliseconds(200));
            started = FakeNccl::kernels() > 0;
            arrived = true;
          }
          group->all_reduce(rank.stream, data, data, Reduction::sum);
          EXPECT_TRUE(!one_gpu || arrived);
          rank.stream.synchronize();
        },
        23007, one_gpu);
    EXPECT_EQ(outcome.run, "");
    return started.load();
  };
  EXPECT_TRUE(started_alone(false));
  EXPECT_FALSE(started_alone(true));
}

TEST(NcclLibrary, ThatIsMissingListsTheFilesTried) {
  const auto nowhere = [](const char* name) -> const char* {
    return std::string_view(name) == "WEFT_NCCL" ? "/nowhere/libnccl.so.2" : nullptr;
  };
  try {
    nccl::load(nowhere);
    ADD_FAILURE() << "no error";
  } catch (const UserError& error) {
    EXPECT_TRUE(
        contains(error.what(), "ranks on GPUs need NCCL (libnccl.so.2, 2.18 or newer), which could not be loaded"));
    EXPECT_TRUE(contains(error.what(), "\n  /nowhere/libnccl.so.2: cannot open shared object file")) << error.what();
  }
}

TEST(NcclLibrary, OfAnotherKindIsRefused) {
  const auto libc = [](const char* name) -> const char* {
    return std::string_view(name) == "WEFT_NCCL" ? "libm.so.6" : nullptr;
  };
  try {
    nccl::load(libc);
    ADD_FAILURE() << "no error";
  } catch (const UserError& error) {
    EXPECT_STREQ(error.what(),
                 "libm.so.6 lacks ncclGetVersion: Weft needs NCCL 2.18 or newer; name another file in WEFT_NCCL");
  }
}

TEST(NcclLibrary, Report) {
  const std::string report = nccl_report();  // a version, or why there is none
  EXPECT_TRUE(report.starts_with("2.") || contains(report, "could not be loaded")) << report;
}

}  // namespace
}  // namespace weft
