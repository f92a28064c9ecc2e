// What happens when ranks disagree, fail or never arrive. Every test here ends within seconds, or hangs and so fails.
#include <chrono>
#include <mutex>
#include <thread>

#include <gtest/gtest.h>

#include "tests/comm/ranks.h"
#include "weft/base/random.h"
#include "weft/comm/local/cluster.h"
#include "weft/device/operations.h"

namespace weft {
namespace {

// The error of every rank ("" for success), and the one that run() threw.
struct Outcome {
  std::vector<std::string> ranks;
  std::vector<bool> peer_errors;  // whether it is a PeerError
  std::string run;
  double seconds = 0;
};

Outcome run_and_collect(int size, const std::function<void(World&)>& body, const LocalOptions& options = {}) {
  Outcome outcome{std::vector<std::string>(static_cast<std::size_t>(size)),
                  std::vector<bool>(static_cast<std::size_t>(size)), "", 0};
  std::mutex mutex;
  LocalCluster cluster(size, options);
  const auto begin = std::chrono::steady_clock::now();
  try {
    cluster.run([&](World& world) {
      try {
        body(world);
      } catch (const std::exception& error) {
        const std::lock_guard lock(mutex);
        outcome.ranks[world.rank().index()] = error.what();
        outcome.peer_errors[world.rank().index()] = dynamic_cast<const PeerError*>(&error) != nullptr;
        throw;
      }
    });
  } catch (const std::exception& error) {
    outcome.run = error.what();
  }
  outcome.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  return outcome;
}

bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

TEST(Disagreement, CountsOfAnAllToAll) {
  const Outcome outcome = run_and_collect(3, [](World& world) {
    HostStream stream;
    const auto group = world.make_group(ranks_below(3), "ep");
    group->barrier(stream);
    std::vector<std::int64_t> send_counts(3, 2), receive_counts(3, 2);
    if (world.rank().value == 1) send_counts[2] = 5;  // rank 2 expects 2
    const HostTensor send(DType::f32, 9), receive(DType::f32, 9);
    group->all_to_all(stream, send, send_counts, receive, receive_counts);
  });
  const std::string expected = "all_to_all (call 2) of group 'ep': rank 1 sends 5 elements to rank 2, which expects 2";
  EXPECT_EQ(outcome.run, expected);
  for (const std::string& rank : outcome.ranks) EXPECT_TRUE(contains(rank, expected)) << rank;
  EXPECT_LT(outcome.seconds, 2);
}

TEST(Disagreement, CountsOfATransfer) {
  const Outcome outcome = run_and_collect(2, [](World& world) {
    HostStream stream;
    const auto group = world.make_group(ranks_below(2), "pipe");
    if (world.rank().value == 0)
      group->send(stream, HostTensor(DType::f32, 3), 1);
    else
      group->receive(stream, HostTensor(DType::f32, 4), 0);
  });
  EXPECT_EQ(outcome.run, "transfer (call 1) of group 'pipe': rank 0 sends 3 elements to rank 1, which expects 4");
  EXPECT_TRUE(outcome.peer_errors[0]);
}

TEST(Disagreement, DtypesOperationsRootsAndSizes) {
  const auto message = [](const std::function<void(Communicator&, Stream&)>& zero,
                          const std::function<void(Communicator&, Stream&)>& one) {
    return run_and_collect(2,
                           [&](World& world) {
                             HostStream stream;
                             const auto group = world.make_group(ranks_below(2), "g");
                             (world.rank().value == 0 ? zero : one)(*group, stream);
                           })
        .run;
  };
  const auto broadcast = [](DType dtype, std::int64_t count, int root) {
    return [=](Communicator& group, Stream& stream) { group.broadcast(stream, HostTensor(dtype, count), root); };
  };
  const auto barrier = [](Communicator& group, Stream& stream) { group.barrier(stream); };
  const auto reduce = [](Reduction reduction) {
    return [=](Communicator& group, Stream& stream) {
      const HostTensor data(DType::f32, 1);
      group.all_reduce(stream, data, data, reduction);
    };
  };
  // Both ranks notice, in any order, so the message may be either rank's.
  const auto either = [](const std::string& got, const std::string& a, const std::string& b) {
    EXPECT_TRUE(got == a || got == b) << got;
  };
  either(message(barrier, broadcast(DType::f32, 1, 0)), "barrier (call 1) of group 'g': rank 1 calls broadcast instead",
         "broadcast (call 1) of group 'g': rank 0 calls barrier instead");
  either(message(broadcast(DType::f32, 1, 0), broadcast(DType::i32, 1, 0)),
         "broadcast (call 1) of group 'g': rank 1 gives dtype i32, rank 0 gives f32",
         "broadcast (call 1) of group 'g': rank 0 gives dtype f32, rank 1 gives i32");
  either(message(broadcast(DType::f32, 1, 0), broadcast(DType::f32, 1, 1)),
         "broadcast (call 1) of group 'g': rank 1 gives root 1, rank 0 gives 0",
         "broadcast (call 1) of group 'g': rank 0 gives root 0, rank 1 gives 1");
  either(message(broadcast(DType::f32, 1, 0), broadcast(DType::f32, 2, 0)),
         "broadcast (call 1) of group 'g': rank 1 gives count 2, rank 0 gives 1",
         "broadcast (call 1) of group 'g': rank 0 gives count 1, rank 1 gives 2");
  either(message(reduce(Reduction::sum), reduce(Reduction::max)),
         "all_reduce (call 1) of group 'g': rank 1 gives reduction max, rank 0 gives sum",
         "all_reduce (call 1) of group 'g': rank 0 gives reduction sum, rank 1 gives max");
}

TEST(Arguments, AreCheckedBeforeAnyoneWaits) {
  LocalCluster cluster(1);
  HostStream stream;
  const RankId zero[] = {RankId(0)};
  const auto group = cluster.world(RankId(0)).make_group(zero, "one");
  const auto message = [](const std::function<void()>& call) -> std::string {
    try {
      call();
    } catch (const BugError& error) {
      return error.what();
    }
    return "no error";
  };
  const HostTensor four(DType::f32, 4), five(DType::f32, 5), ints(DType::i32, 4);
  const std::vector<std::int64_t> one_count{4}, two_counts{2, 2}, too_many{5}, negative{-1};
  const auto all_to_all = [&](const Tensor& send, Counts sends, const Tensor& receive, Counts receives) {
    return message([&] { group->all_to_all(stream, send, sends, receive, receives); });
  };
  EXPECT_TRUE(contains(all_to_all(four, two_counts, five, one_count), "send_counts has 2 entries for 1 ranks"));
  EXPECT_TRUE(contains(all_to_all(four, too_many, five, one_count), "send [4] has 4 elements, 5 are needed"));
  EXPECT_TRUE(contains(all_to_all(four, negative, five, one_count), "send_counts has a negative entry"));
  EXPECT_TRUE(contains(all_to_all(four, one_count, four, one_count), "send and receive overlap"));
  EXPECT_TRUE(contains(all_to_all(four, one_count, ints, one_count), "send and receive differ in dtype"));
  EXPECT_TRUE(
      contains(message([&] { group->all_gather(stream, four, five); }), "receive [5] has 5 elements, 4 are needed"));
  EXPECT_TRUE(contains(message([&] { group->broadcast(stream, four, 1); }), "there is no peer 1 among 1"));
  EXPECT_TRUE(contains(message([&] { group->send(stream, four, 0); }), "a rank does not send to itself"));
  EXPECT_TRUE(contains(message([&] { group->broadcast(stream, Tensor(nullptr, DType::f32, Shape{2}), 0); }),
                       "data has no memory"));
  const RankId twice[] = {RankId(0), RankId(0)}, beyond[] = {RankId(0), RankId(1)};
  EXPECT_TRUE(contains(message([&] { cluster.world(RankId(0)).make_group(twice, "g"); }), "rank 0 is a member twice"));
  EXPECT_TRUE(contains(message([&] { cluster.world(RankId(0)).make_group(beyond, "g"); }), "no rank 1 among 1"));
  LocalCluster two(2);
  EXPECT_TRUE(
      contains(message([&] { two.world(RankId(1)).make_group(zero, "g"); }), "rank 1 makes it but is not a member"));
}

TEST(Failure, AnExceptionOnOneRankEndsAllWithItsMessage) {
  const Outcome outcome = run_and_collect(4, [](World& world) {
    HostStream stream;
    const auto all = world.make_group(ranks_below(4), "all");
    all->barrier(stream);
    if (world.rank().value == 2) throw UserError("the loss is a potato");
    if (world.rank().value == 3) {  // waits for a message that is never sent
      all->receive(stream, HostTensor(DType::f32, 1), 0);
    } else {
      all->barrier(stream);
    }
  });
  EXPECT_EQ(outcome.run, "the loss is a potato");
  EXPECT_LT(outcome.seconds, 2);
  for (const std::size_t rank : {0, 1, 3}) {
    EXPECT_EQ(outcome.ranks[rank], "rank 2 failed: the loss is a potato");
    EXPECT_TRUE(outcome.peer_errors[rank]);
  }
}

TEST(Failure, TheTypeOfTheFirstErrorSurvives) {
  LocalCluster cluster(2);
  EXPECT_THROW(cluster.run([](World& world) {
    HostStream stream;
    if (world.rank().value == 1) throw UserError("no such file");
    world.make_group(ranks_below(2), "all")->barrier(stream);
  }),
               UserError);
}

TEST(Failure, EndsLanesOfTheSameRankAndLaterCalls) {
  const Outcome outcome = run_and_collect(2, [](World& world) {
    HostStream stream;
    const auto one = world.make_group(ranks_below(2), "one"), two = world.make_group(ranks_below(2), "two");
    if (world.rank().value == 1) {
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
      world.abort("lane 'two' broke");
      EXPECT_THROW(one->barrier(stream), PeerError);
      EXPECT_THROW(world.throw_if_ended(), PeerError);
      EXPECT_THROW(world.make_group(ranks_below(2), "three"), PeerError);
      return;
    }
    std::thread lane([&] {
      HostStream own;
      EXPECT_THROW(two->barrier(own), PeerError);
    });
    EXPECT_THROW(one->barrier(stream), PeerError);
    lane.join();
  });
  EXPECT_EQ(outcome.run, "");
  EXPECT_LT(outcome.seconds, 2);
}

TEST(Failure, EndsAnEmulatedTransferUnderWay) {
  const LocalOptions slow{.network = EmulatedNetwork{.latency = 30}};
  const Outcome outcome = run_and_collect(
      3,
      [](World& world) {
        HostStream stream;
        const RankId pair[] = {RankId(0), RankId(1)};
        if (world.rank().value == 2) {
          std::this_thread::sleep_for(std::chrono::milliseconds(100));
          throw RunError("enough");
        }
        world.make_group(pair, "pair")->barrier(stream);
      },
      slow);
  EXPECT_EQ(outcome.ranks[0], "rank 2 failed: enough");
  EXPECT_LT(outcome.seconds, 2);
}

TEST(Timeout, ReportsMissingRanksAndWhatEachIsDoing) {
  const Outcome outcome = run_and_collect(3, [](World& world) {
    HostStream stream;
    const auto group = world.make_group(ranks_below(3), "dp");
    const auto other = world.make_group(ranks_below(3), "ep");
    world.set_timeout(0.3);
    world.set_status([rank = world.rank().value] { return fmt::format("micro-batch {}, layer 2", rank); });
    group->barrier(stream);
    if (world.rank().value == 1) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1000));
    } else {
      const HostTensor data(DType::f32, 1);
      group->all_reduce(stream, data, data, Reduction::sum);
    }
    world.set_status({});
  });
  EXPECT_TRUE(contains(outcome.run, "in all_reduce (call 2) of group 'dp' for rank 1 (the timeout is 0.3 s)"))
      << outcome.run;
  EXPECT_TRUE(contains(outcome.run, "\n  rank 0: micro-batch 0, layer 2; in all_reduce (call 2) of group 'dp'"));
  EXPECT_TRUE(contains(outcome.run, "\n  rank 1: micro-batch 1, layer 2\n"));
  EXPECT_TRUE(contains(outcome.run, "\n  rank 2: micro-batch 2, layer 2; in all_reduce (call 2) of group 'dp'"));
  // One of the two waiting ranks reports, the other gets a PeerError.
  EXPECT_NE(outcome.peer_errors[0], outcome.peer_errors[2]);
  EXPECT_LT(outcome.seconds, 2);
}

TEST(Timeout, OfATransferNamesThePeer) {
  const Outcome outcome = run_and_collect(2, [](World& world) {
    HostStream stream;
    const auto group = world.make_group(ranks_below(2), "pipe");
    world.set_timeout(0.2);
    if (world.rank().value == 0) group->send(stream, HostTensor(DType::f32, 1), 1);
  });
  EXPECT_TRUE(contains(outcome.run, "in transfer (call 1) of group 'pipe' for rank 1 (the timeout is 0.2 s)"))
      << outcome.run;
  EXPECT_TRUE(contains(outcome.run, "\n  rank 1: not communicating")) << outcome.run;
}

TEST(Misuse, OneCommunicatorOnTwoThreads) {
  LocalCluster cluster(2);
  HostStream stream;
  const auto zero = cluster.world(RankId(0)).make_group(ranks_below(2), "all");
  const auto one = cluster.world(RankId(1)).make_group(ranks_below(2), "all");
  std::thread waiting([&] {
    HostStream own;
    zero->barrier(own);
  });
  while (zero->operation() == Operation::none) std::this_thread::yield();
  try {
    zero->barrier(stream);
    ADD_FAILURE() << "no error";
  } catch (const BugError& error) {
    EXPECT_TRUE(contains(error.what(), "group 'all' is used by two threads at once: barrier during barrier"));
  }
  one->barrier(stream);
  waiting.join();
}

// Ranks free their buffers as soon as a call throws; a sanitizer notices if a peer still copies from them.
TEST(Failure, NobodyReadsBuffersOfARankThatHasLeft) {
  for (std::uint64_t round = 0; round < 60; ++round) {
    const std::uint64_t key = random_key(round, "faults");
    const auto when = static_cast<int>(random_below(key, 0, 40));
    const auto who = static_cast<int>(random_below(key, 1, 4));
    const Outcome outcome = run_and_collect(4, [&](World& world) {
      HostStream stream;
      const auto all = world.make_group(ranks_below(4), "all"), ring = world.make_group(ranks_below(4), "ring");
      std::thread lane([&] {
        HostStream own;
        try {
          for (int i = 0; i < 40; ++i) {
            const HostTensor send(DType::f32, 5000), receive(DType::f32, 5000);
            const Transfer both[] = {{Transfer::Direction::send, (ring->rank() + 1) % 4, send},
                                     {Transfer::Direction::receive, (ring->rank() + 3) % 4, receive}};
            ring->transfer(own, both);
          }
        } catch (const PeerError&) {
        }
      });
      try {
        const std::vector<std::int64_t> counts(4, 5000);
        for (int i = 0; i < 40; ++i) {
          if (i == when && world.rank().value == who) throw RunError("fault {}", round);
          const HostTensor send(DType::f32, 20000), receive(DType::f32, 20000);
          all->all_to_all(stream, send, counts, receive, counts);
          all->all_reduce(stream, send, send, Reduction::sum);
        }
      } catch (const std::exception& error) {
        world.abort(error.what());
        lane.join();
        throw;
      }
      lane.join();
    });
    EXPECT_EQ(outcome.run, fmt::format("fault {}", round));
    for (int rank = 0; rank < 4; ++rank) {
      if (rank == who) continue;
      EXPECT_EQ(outcome.ranks[static_cast<std::size_t>(rank)], fmt::format("rank {} failed: fault {}", who, round));
    }
  }
}

}  // namespace
}  // namespace weft
