#include "weft/comm/local/network.h"

#include <ctime>
#include <thread>

#include <gtest/gtest.h>

#include "tests/comm/ranks.h"
#include "weft/comm/local/cluster.h"

namespace weft {
namespace {

double seconds_of(clockid_t clock) {
  timespec now{};
  clock_gettime(clock, &now);
  return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9;
}

std::string error_of(const std::string& text) {
  try {
    parse_network(text);
  } catch (const UserError& error) {
    return error.what();
  }
  return "no error";
}

TEST(NetworkText, Reads) {
  const EmulatedNetwork both = parse_network("latency=100us,bandwidth=2GB/s");
  EXPECT_DOUBLE_EQ(both.latency, 100e-6);
  EXPECT_DOUBLE_EQ(both.bandwidth, 2e9);
  EXPECT_EQ(to_text(both), "latency=100us,bandwidth=2GB/s");
  const EmulatedNetwork latency = parse_network("latency=1.5ms");
  EXPECT_DOUBLE_EQ(latency.latency, 1.5e-3);
  EXPECT_EQ(to_text(latency), "latency=1.5ms");
  EXPECT_DOUBLE_EQ(parse_network("bandwidth=8Gbit/s").bandwidth, 1e9);
  EXPECT_DOUBLE_EQ(parse_network("bandwidth=1MiB/s,latency=0s").bandwidth, 1048576);
  EXPECT_EQ(to_text(parse_network("latency=0ns,bandwidth=1e3B/s")), "latency=0ns,bandwidth=1KB/s");
}

TEST(NetworkText, Refuses) {
  const std::string example = "; write for example latency=100us,bandwidth=2GB/s\n";
  EXPECT_EQ(error_of("latency=100"),
            "--emulate-network: '100' has no unit (one of ns, us, ms, s)" + example + "  latency=100\n             ^");
  EXPECT_EQ(error_of("latency=1us,bandwidth=2Gb/s"),
            "--emulate-network: 'Gb/s' is not a known unit (one of B/s, KB/s, MB/s, GB/s, KiB/s, MiB/s, GiB/s, Mbit/s, "
            "Gbit/s)" +
                example + "  latency=1us,bandwidth=2Gb/s\n                         ^");
  EXPECT_EQ(error_of("delay=1us"),
            "--emulate-network: 'delay' is neither latency nor bandwidth" + example + "  delay=1us\n  ^");
  EXPECT_EQ(error_of("latency=us"),
            "--emulate-network: 'us' does not begin with a number" + example + "  latency=us\n          ^");
  EXPECT_EQ(error_of("latency=1us,latency=2us"),
            "--emulate-network: latency is given twice" + example + "  latency=1us,latency=2us\n              ^");
  EXPECT_EQ(error_of("fast"), "--emulate-network: 'fast' is not key=value" + example + "  fast\n  ^");
  EXPECT_EQ(error_of(""), "--emulate-network: '' is not key=value" + example + "  \n  ^");
  EXPECT_EQ(error_of("bandwidth=0GB/s"), "--emulate-network: the bandwidth is below one byte per second" + example +
                                             "  bandwidth=0GB/s\n            ^");
}

TEST(Link, QueuesEachDirectionByItself) {
  Link link({.latency = 5, .bandwidth = 1e9});  // a byte per nanosecond; the latency is added at completion
  const Link::Times first = link.reserve(1000, 300, 100);
  EXPECT_EQ(first.out, 1300);
  EXPECT_EQ(first.in, 1100);
  const Link::Times second = link.reserve(1050, 10, 10);
  EXPECT_EQ(second.out, 1310);
  EXPECT_EQ(second.in, 1110);
  const Link::Times idle = link.reserve(5000, 10, 0);
  EXPECT_EQ(idle.out, 5010);
  EXPECT_EQ(idle.in, 5000);
}

// The shortest of a few tries, as the machine may be busy; a transfer never completes early.
struct Measured {
  double wall = 1e9, cpu = 1e9;
};
Measured measure(World& world, const std::function<void()>& call, Communicator& group, Stream& stream, int tries) {
  Measured best;
  for (int i = 0; i < tries; ++i) {
    group.barrier(stream);
    const double wall = seconds_of(CLOCK_MONOTONIC), cpu = seconds_of(CLOCK_THREAD_CPUTIME_ID);
    call();
    best.wall = std::min(best.wall, seconds_of(CLOCK_MONOTONIC) - wall);
    best.cpu = std::min(best.cpu, seconds_of(CLOCK_THREAD_CPUTIME_ID) - cpu);
  }
  (void)world;
  return best;
}

TEST(EmulatedNetwork, CompletesAtItsDeadlineWithoutCpuTime) {
  LocalCluster cluster(2, {.network = parse_network("latency=20ms,bandwidth=10MB/s")});
  cluster.run([](World& world) {
    HostStream stream;
    const auto group = world.make_group(ranks_below(2), "ep");
    const HostTensor send(DType::u8, 700'000), receive(DType::u8, 700'000);
    // Rank 0 sends 600 kB and gets 200 kB, rank 1 the reverse: 60 ms on the fuller direction, and 20 ms of latency.
    const std::vector<std::int64_t> rank_0_sends{100'000, 600'000}, rank_1_sends{200'000, 100'000};
    const bool zero = world.rank().value == 0;
    const std::vector<std::int64_t> sends = zero ? rank_0_sends : rank_1_sends;
    const std::vector<std::int64_t> receives =
        zero ? std::vector<std::int64_t>{100'000, 200'000} : std::vector<std::int64_t>{600'000, 100'000};
    const Measured measured = measure(
        world, [&] { group->all_to_all(stream, send, sends, receive, receives); }, *group, stream, 10);
    // The peer may leave the barrier a little earlier and start the transfer before this rank starts its clock.
    EXPECT_GT(measured.wall, 0.079);
    EXPECT_LT(measured.wall, 0.088);
    EXPECT_LT(measured.cpu, 0.002);
  });
}

TEST(EmulatedNetwork, LanesShareARanksLink) {
  LocalCluster cluster(2, {.network = parse_network("bandwidth=10MB/s")});
  cluster.run([](World& world) {
    HostStream stream;
    const auto sync = world.make_group(ranks_below(2), "sync");
    std::vector<std::unique_ptr<Communicator>> lanes;
    for (int lane = 0; lane < 3; ++lane) lanes.push_back(world.make_group(ranks_below(2), "lane"));
    const auto all_lanes = [&] {
      std::vector<std::thread> threads;
      for (const auto& lane : lanes) {
        threads.emplace_back([&] {
          HostStream own;
          const HostTensor send(DType::u8, 200'000), receive(DType::u8, 400'000);
          lane->all_gather(own, send, receive);  // 20 ms alone
        });
      }
      for (std::thread& thread : threads) thread.join();
    };
    const Measured measured = measure(world, all_lanes, *sync, stream, 10);
    EXPECT_GT(measured.wall, 0.059);
#if !defined(__SANITIZE_THREAD__)  // where starting threads takes longer than the transfers
    EXPECT_LT(measured.wall, 0.072);
#endif
  });
}

// Full duplex: a concurrent send and receive take as long as one of them.
TEST(EmulatedNetwork, TransfersBothWaysConcurrently) {
  LocalCluster cluster(2, {.network = parse_network("latency=5ms,bandwidth=10MB/s")});
  cluster.run([](World& world) {
    HostStream stream;
    const auto group = world.make_group(ranks_below(2), "pipe");
    const HostTensor send(DType::u8, 300'000), receive(DType::u8, 300'000);
    const int peer = 1 - world.rank().value;
    const Transfer both[] = {{Transfer::Direction::send, peer, send}, {Transfer::Direction::receive, peer, receive}};
    const Measured measured = measure(
        world, [&] { group->transfer(stream, both); }, *group, stream, 3);
    EXPECT_GT(measured.wall, 0.034);
    EXPECT_LT(measured.wall, 0.043);
  });
}

TEST(LocalWait, ALatePeerCostsNoCpuTime) {
  LocalCluster cluster(2);
  cluster.run([](World& world) {
    HostStream stream;
    const auto group = world.make_group(ranks_below(2), "all");
    if (world.rank().value == 1) std::this_thread::sleep_for(std::chrono::milliseconds(300));
    const double cpu = seconds_of(CLOCK_THREAD_CPUTIME_ID);
    group->barrier(stream);
    EXPECT_LT(seconds_of(CLOCK_THREAD_CPUTIME_ID) - cpu, 0.003);
  });
}

}  // namespace
}  // namespace weft
