// The TCP world, tested by starting tests/comm/processes/comm_ranks as ranks. Nothing here may hang: processes that do
// are killed.
#include <algorithm>
#include <thread>

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include "tests/comm/rank_processes.h"
#include "tests/comm/ranks.h"
#include "weft/base/text.h"
#include "weft/comm/tcp_world.h"
#include "weft/device/null/device.h"

namespace weft {
namespace {

const std::string program = WEFT_BINARY_DIR "/comm_ranks";

std::vector<EndedProcess> tcp(int ranks, const std::string& mode, double grace = 5) {
  return run_on_ranks(ranks, {program, mode}, grace);
}

std::string all_of(const std::vector<EndedProcess>& ended) {
  std::string text;
  for (const EndedProcess& each : ended) text += fmt::format("[exit {}] {}", each.code, each.output);
  return text;
}

void expect_done(const std::vector<EndedProcess>& ended) {
  for (const EndedProcess& each : ended) EXPECT_EQ(each.code, 0) << all_of(ended);
}

std::vector<std::string> rank_lines(const std::vector<EndedProcess>& ended) {
  std::vector<std::string> lines;
  for (const EndedProcess& each : ended)
    for (const std::string& line : split(each.output, '\n'))
      if (line.starts_with("rank ")) lines.push_back(line);
  std::ranges::sort(lines);
  return lines;
}

std::vector<std::string> local_lines(int ranks, const std::string& mode) {
  RankProcesses one;
  one.start({program, mode, std::to_string(ranks)}, {});
  return rank_lines(one.wait());
}

Variables with(Variables variables, const Variables& more) {
  for (const auto& [name, value] : more) variables[name] = value;
  return variables;
}

// A connection to a loopback port that sends `text`, once a process listens there.
int stray(int port, const std::string& text) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.sin_port = htons(static_cast<std::uint16_t>(port));
  for (int tries = 0; tries < 2000; ++tries) {
    const int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (::connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0) {
      if (::send(fd, text.data(), text.size(), MSG_NOSIGNAL) < 0) return -1;
      return fd;
    }
    ::close(fd);
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  return -1;
}

TEST(Tcp, AgreesWithLocalBitForBit) {
  for (const int ranks : {2, 3}) {  // four in the next test
    const auto ended = tcp(ranks, "collectives");
    expect_done(ended);
    EXPECT_EQ(rank_lines(ended).size(), static_cast<std::size_t>(ranks));
    EXPECT_EQ(rank_lines(ended), local_lines(ranks, "collectives"));
  }
}

TEST(Tcp, LanesAtOnceAgreeWithLocal) {
  const auto ended = tcp(4, "lanes");
  expect_done(ended);
  EXPECT_EQ(rank_lines(ended).size(), 4u);
  EXPECT_EQ(rank_lines(ended), local_lines(4, "lanes"));
}

TEST(Tcp, LargeMessages) { expect_done(tcp(3, "large")); }

TEST(Tcp, SendersMayRunAhead) { expect_done(tcp(3, "ahead")); }

TEST(Tcp, AnExceptionOnOneRankEndsAllWithItsMessage) {
  const auto ended = tcp(4, "abort");
  EXPECT_EQ(rank_lines(ended), (std::vector<std::string>{"rank 0: error: rank 2 failed: the loss is a potato",
                                                         "rank 1: error: rank 2 failed: the loss is a potato",
                                                         "rank 2: error: the loss is a potato",
                                                         "rank 3: error: rank 2 failed: the loss is a potato"}));
  for (const EndedProcess& each : ended) EXPECT_EQ(each.code, 1);
}

TEST(Tcp, WrongCountsNameBothRanks) {
  const std::string both =
      "rank 2: error: all_to_all (call 1) of group 'ep': rank 1 sends {} elements to rank 2, which expects 2";
  EXPECT_TRUE(tcp(4, "counts")[2].printed(fmt::format(fmt::runtime(both), 5)));
  EXPECT_TRUE(tcp(4, "counts_less")[2].printed(fmt::format(fmt::runtime(both), 0)));
}

TEST(Tcp, DifferentGroupsAreNoticed) {
  const auto ended = tcp(2, "groups");
  EXPECT_TRUE(ended[0].printed("rank 1 makes group 'gather' of 2 ranks while rank 0 makes group 'reduce' of 2"))
      << all_of(ended);
}

TEST(Tcp, AStalledRankIsReportedWithWhatEachRankIsDoing) {
  const auto ended = tcp(4, "stall");
  EXPECT_TRUE(ended[0].printed("in all_reduce (call 2) of group 'dp' for rank 2 (the timeout is 0.7 s)"))
      << all_of(ended);
  EXPECT_TRUE(ended[0].printed("\n  rank 2: micro-batch 2, layer 2\n")) << all_of(ended);
  for (const int rank : {0, 1, 3})
    EXPECT_TRUE(ended[0].printed(fmt::format("\n  rank {0}: micro-batch {0}, layer 2; in all_reduce (call 2)", rank)))
        << all_of(ended);
}

TEST(Tcp, AKilledRankEndsTheOthersAtOnce) {
  for (const char* mode : {"kill", "kill_sending"}) {
    const auto ended = tcp(4, mode);
    EXPECT_EQ(ended[1].code, 137);
    for (const int rank : {0, 2, 3}) {
      const EndedProcess& other = ended[static_cast<std::size_t>(rank)];
      EXPECT_EQ(other.output, fmt::format("rank {}: error: rank 1 is gone (its connection closed)\n", rank)) << mode;
      EXPECT_EQ(other.code, 1) << mode;
      EXPECT_LT(other.seconds, ended[1].seconds + 1) << mode;
    }
  }
}

TEST(Tcp, SigtermEndsTheRunWithAReport) {
  const auto ended = tcp(2, "stop");
  EXPECT_TRUE(ended[1].printed("weft: rank 1 got SIGTERM and stops. It was at: micro-batch 1, layer 4"))
      << all_of(ended);
  EXPECT_TRUE(ended[0].printed("rank 0: error: rank 1 failed: got SIGTERM,")) << all_of(ended);
}

TEST(Tcp, AMissingRankIsNamed) {
  const int port = free_port();
  RankProcesses processes;
  for (const int rank : {0, 1, 3})
    processes.start({program, "large"}, with(torchrun_variables(rank, 4, port), {{"WEFT_TEST_TIMEOUT", "0.4"}}));
  const auto ended = processes.wait();
  const std::string who = fmt::format("s for rank 2 of 4 to connect to 127.0.0.1:{} (the timeout is 0.4 s)", port);
  EXPECT_TRUE(ended[0].printed("comm_ranks: waited 0.4 ") && ended[0].printed(who)) << all_of(ended);
  EXPECT_TRUE(ended[1].printed("comm_ranks: rank 0 failed: waited 0.4 ") && ended[1].printed(who)) << all_of(ended);
  for (const EndedProcess& each : ended) EXPECT_EQ(each.code, 1);
}

TEST(Tcp, WithoutRankZeroTheOthersReportTheAddress) {
  const int port = free_port();
  RankProcesses processes;
  processes.start({program, "large"}, with(torchrun_variables(1, 2, port), {{"WEFT_TEST_TIMEOUT", "0.2"}}));
  const auto ended = processes.wait();
  EXPECT_TRUE(
      ended[0].printed(fmt::format("s for rank 0 at 127.0.0.1:{}: Connection refused (the timeout is 0.2 s)", port)))
      << all_of(ended);
}

TEST(Tcp, WrongRanksAreRefused) {
  const int port = free_port();
  RankProcesses processes;
  processes.start({program, "large"}, with(torchrun_variables(0, 3, port), {{"WEFT_TEST_TIMEOUT", "0.7"}}));
  processes.start({program, "large"}, with(torchrun_variables(1, 3, port), {{"WEFT_TEST_TIMEOUT", "0.7"}}));
  std::this_thread::sleep_for(std::chrono::milliseconds(200));
  processes.start({program, "large"}, torchrun_variables(2, 4, port));
  processes.start({program, "large"}, torchrun_variables(1, 3, port));
  processes.start({program, "large"}, with(torchrun_variables(2, 3, port), {{"TORCHELASTIC_RUN_ID", "yesterday"}}));
  const auto ended = processes.wait();
  const std::string size = "it was started as rank 2 of 4, but this run has 3 ranks; give all the same world size";
  EXPECT_TRUE(ended[2].printed(
      fmt::format("comm_ranks: rank 0 at 127.0.0.1:{} refused this process (rank 2 of 4): {}", port, size)))
      << all_of(ended);
  EXPECT_TRUE(ended[3].printed("rank 1 is already connected, from 127.0.0.1")) << all_of(ended);
  EXPECT_TRUE(ended[4].printed("it belongs to run 'yesterday', but this is run 'test'")) << all_of(ended);
  for (std::size_t i = 2; i < 5; ++i) EXPECT_EQ(ended[i].code, 2) << all_of(ended);
  EXPECT_TRUE(ended[0].printed("for rank 2 of 3") && ended[0].printed("refused: ") && ended[0].printed(size))
      << all_of(ended);
}

TEST(Tcp, ARankMayReconnectUntilAllAreConnected) {
  const int port = free_port();
  RankProcesses processes;
  for (const int rank : {1, 0}) processes.start({program, "large"}, torchrun_variables(rank, 3, port));
  std::this_thread::sleep_for(std::chrono::milliseconds(150));
  processes.kill(0);
  for (const int rank : {1, 2}) processes.start({program, "large"}, torchrun_variables(rank, 3, port));
  const auto ended = processes.wait();
  for (std::size_t i = 1; i < ended.size(); ++i) EXPECT_EQ(ended[i].code, 0) << all_of(ended);
}

TEST(Tcp, StrayConnectionsDoNoHarm) {
  const int port = free_port();
  RankProcesses processes;
  processes.start({program, "large"}, torchrun_variables(0, 2, port));
  const int mute = stray(port, ""), browser = stray(port, "GET / HTTP/1.1\r\n\r\n");
  EXPECT_GE(mute, 0);
  EXPECT_GE(browser, 0);
  processes.start({program, "large"}, torchrun_variables(1, 2, port));
  expect_done(processes.wait());
  ::close(mute);
  ::close(browser);
}

TEST(Tcp, APortThatIsTaken) {
  const int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof(address);
  ASSERT_EQ(::bind(fd, reinterpret_cast<sockaddr*>(&address), length), 0);
  ASSERT_EQ(::listen(fd, 1), 0);
  ::getsockname(fd, reinterpret_cast<sockaddr*>(&address), &length);
  RankProcesses processes;
  processes.start({program, "large"}, torchrun_variables(0, 2, ntohs(address.sin_port)));
  const auto ended = processes.wait();
  ::close(fd);
  EXPECT_TRUE(ended[0].printed("Address already in use; set MASTER_PORT to a free port, on every rank"))
      << all_of(ended);
}

TEST(Tcp, HostNamesAndIpv6) {
  const int port = free_port();
  for (const char* host : {"localhost", "::1"}) {
    const int probe = ::socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_in6 address{};
    address.sin6_family = AF_INET6;
    address.sin6_addr = in6addr_loopback;
    const bool available = ::bind(probe, reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0;
    ::close(probe);
    if (!available && std::string(host) == "::1") continue;
    RankProcesses processes;
    for (int rank = 0; rank < 3; ++rank)
      processes.start({program, "large"}, with(torchrun_variables(rank, 3, port), {{"MASTER_ADDR", host}}));
    expect_done(processes.wait());
  }
}

TEST(Tcp, MovesHostMemoryOnly) {
  struct Gpu : NullDevice {
    bool asynchronous() const override { return true; }
  } gpu;
  NullDevice host;
  const auto world = make_tcp_world(Launch{}, [](const char*) { return nullptr; });
  EXPECT_NE(world->make_group(ranks_below(1), "alone", &host), nullptr);
  try {
    world->make_group(ranks_below(1), "dp", &gpu);
    FAIL();
  } catch (const UserError& error) {
    EXPECT_STREQ(error.what(), "TCP moves host memory only, but group 'dp' is on null: ranks on GPUs need NCCL");
  }
}

}  // namespace
}  // namespace weft
