#include "weft/device/cpu/team.h"

#include <atomic>
#include <map>
#include <numeric>
#include <string>

#include <gtest/gtest.h>

#include "weft/base/error.h"
#include "weft/device/cpu/device.h"

namespace weft {
namespace {

TEST(Team, EveryMemberRunsOnceARound) {
  for (int threads : {1, 2, 5}) {
    Team team(threads);
    ASSERT_EQ(team.size(), threads);
    std::vector<int> runs(static_cast<std::size_t>(threads), 0);
    for (int round = 0; round < 200; ++round) team.run([&](int member) { ++runs[static_cast<std::size_t>(member)]; });
    for (int count : runs) EXPECT_EQ(count, 200);
  }
}

TEST(Team, WhatMembersWroteIsSeenAfterRun) {
  Team team(4);
  std::vector<std::int64_t> parts(4, 0);
  for (int round = 1; round <= 1000; ++round) {
    team.run([&](int member) { parts[static_cast<std::size_t>(member)] = round; });
    ASSERT_EQ(std::accumulate(parts.begin(), parts.end(), std::int64_t{0}), 4 * round);
  }
}

TEST(Team, RangesCoverEverythingOnce) {
  Team team(3);
  for (std::int64_t count : {0, 1, 2, 3, 7, 100})
    for (std::int64_t grain : {1, 4, 1000}) {
      std::vector<std::atomic<int>> seen(static_cast<std::size_t>(count));
      std::atomic<int> calls{0};
      team.ranges(count, grain, [&](std::int64_t begin, std::int64_t end) {
        ++calls;
        EXPECT_LT(begin, end);
        for (std::int64_t i = begin; i < end; ++i) ++seen[static_cast<std::size_t>(i)];
      });
      for (const auto& times : seen) EXPECT_EQ(times, 1);
      EXPECT_LE(calls, std::max<std::int64_t>(count / grain, count > 0 ? 1 : 0));
    }
}

TEST(Team, AnErrorOfAnyMemberReachesTheCallerAndTheTeamLivesOn) {
  Team team(3);
  for (int bad = 0; bad < 3; ++bad) {
    try {
      team.run([&](int member) {
        if (member == bad) throw RunError("member {} failed", member);
      });
      FAIL() << "not thrown";
    } catch (const RunError& error) {
      EXPECT_STREQ(error.what(), fmt::format("member {} failed", bad).c_str());
    }
    std::atomic<int> ran{0};
    team.run([&](int) { ++ran; });
    EXPECT_EQ(ran, 3);
  }
}

TEST(CpuDevice, MemoryIsAlignedAndTooMuchIsRefused) {
  CpuDevice device;
  for (std::size_t bytes : {std::size_t{0}, std::size_t{1}, std::size_t{1000}, std::size_t{9} << 20}) {
    const auto memory = device.allocate(bytes);
    EXPECT_EQ(memory->bytes(), bytes);
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(memory->data()) % 256, 0u);
  }
  try {
    device.allocate(device.free_bytes() + (std::size_t{1} << 40));
    FAIL() << "not refused";
  } catch (const RunError& error) {
    EXPECT_EQ(std::string(error.what()).find("cannot allocate "), 0u) << error.what();
    EXPECT_NE(std::string(error.what()).find(" are free"), std::string::npos) << error.what();
  }
}

TEST(CpuDevice, CopiesAndEventsAreDoneAtOnce) {
  CpuDevice device;
  const auto stream = device.make_stream(1);
  const auto memory = device.allocate(16);
  const char in[16] = "fifteen letters";
  char out[16] = {};
  device.copy_in(*stream, memory->data(), in, sizeof in);
  device.copy_out(*stream, out, memory->data(), sizeof out);
  EXPECT_STREQ(out, in);
  const auto event = device.make_event();
  EXPECT_FALSE(event->done());
  event->record(*stream);
  event->wait_on(*stream);
  EXPECT_TRUE(event->done());
}

TEST(CpuDevice, AStreamNeedsAThread) {
  CpuDevice device;
  try {
    device.make_stream(0);
    FAIL() << "not refused";
  } catch (const UserError& error) {
    EXPECT_STREQ(error.what(), "a CPU stream of 0 threads: it needs at least 1");
  }
}

TEST(CpuDevice, NamesItsInstructionSet) {
  const std::map<Isa, std::string> names{
      {Isa::baseline, "cpu (baseline)"}, {Isa::v3, "cpu (AVX2)"}, {Isa::v4, "cpu (AVX-512)"}};
  ASSERT_TRUE(supported(best_isa()));
  for (const auto& [isa, name] : names) {
    if (supported(isa)) {
      EXPECT_EQ(CpuDevice(isa).name(), name);
    }
  }
}

}  // namespace
}  // namespace weft
