// How the processors of a device are divided between updates and the forward pass: the quickest of a few divisions stays.
#include "weft/execute/division_trials.h"

#include <map>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/execute/ranks.h"
#include "weft/device/cpu/device.h"
#include "weft/execute/stream_executor.h"
#include "weft/train/digest.h"
#include "weft/train/session.h"

namespace weft {
namespace {

using ::testing::DoubleEq;
using ::testing::ElementsAre;
using ::testing::Pair;
using Stage = DivisionTrials::Stage;

TEST(DivisionTrials, tries_even_parts) {
  EXPECT_THAT(divisions_to_try(132), ElementsAre(132, 4, 16, 24, 32, 40));
  EXPECT_THAT(divisions_to_try(108), ElementsAre(108, 4, 16, 24, 32, 40));
  EXPECT_THAT(divisions_to_try(1), ElementsAre(1));  // a CPU
}

TEST(DivisionTrials, keeps_the_quickest) {
  // Of six steps each; with 8 the first were quick by chance.
  const std::map<int, std::vector<double>> seconds{{132, {3, 3, 3, 3, 3, 3}},
                                                   {8, {1, 1, 1, 1, 1, 25}},
                                                   {24, {2, 2, 2, 2, 2, 2}},
                                                   {48, {2.5, 2.5, 2.5, 2.5, 2.5, 2.5}}};
  DivisionTrials trials({132, 8, 24, 48}, 132);
  std::map<int, std::size_t> timed;
  std::vector<Stage> stages;
  int steps = 0;
  for (; !trials.settled(); ++steps) {
    const int tried = trials.processors();
    if (tried == 24) stages.push_back(trials.stage());
    const bool times = trials.stage() == Stage::time;
    // What is not timed does not matter.
    const bool quickest = trials.passed(times ? seconds.at(tried)[timed[tried]++] : 0.25);
    EXPECT_EQ(quickest, timed[tried] == 6 && (tried == 132 || tried == 24)) << tried;
  }
  EXPECT_EQ(trials.processors(), 24);
  EXPECT_EQ(steps, 47);  // all of them need not be watched
  EXPECT_THAT(stages, ElementsAre(Stage::meet, Stage::watch, Stage::warm, Stage::warm, Stage::warm, Stage::warm,
                                  Stage::time, Stage::time, Stage::time, Stage::time, Stage::time, Stage::time));
  EXPECT_THAT(trials.timed(), ElementsAre(Pair(132, DoubleEq(3)), Pair(8, DoubleEq(5)), Pair(24, DoubleEq(2)),
                                          Pair(48, DoubleEq(2.5))));
  EXPECT_FALSE(trials.passed(0.1));
  EXPECT_EQ(trials.processors(), 24);
}

// A second of them, but not fewer than three nor more than twelve.
TEST(DivisionTrials, warms_a_device_up_by_time) {
  for (const auto& [seconds, steps] : {std::pair{2.0, 3}, {0.2, 5}, {1e-3, 12}}) {
    DivisionTrials trials({132, 24}, 132);
    trials.passed(seconds);
    for (int step = 0; step < steps; ++step) {
      EXPECT_EQ(trials.stage(), Stage::warm) << seconds;
      trials.passed(seconds);
    }
    EXPECT_EQ(trials.stage(), Stage::time) << seconds;
  }
}

TEST(DivisionTrials, takes_the_only_one_untimed) {
  DivisionTrials none({132}, 132), forced({20}, 132);
  none.passed(1);
  EXPECT_TRUE(none.settled());
  EXPECT_FALSE(none.divides());
  forced.passed(1);
  EXPECT_EQ(forced.stage(), Stage::watch);
  forced.passed(1);
  EXPECT_TRUE(forced.settled());
  EXPECT_EQ(forced.processors(), 20);
}

// A CPU that claims to queue its work and to have processors to divide.
class Divided : public CpuDevice {
 public:
  bool asynchronous() const override { return true; }
  int processors() const override { return 132; }
};

SessionOptions small_options(bool overlap) {
  RankCase c = small_case("*-");
  c.dtype = DType::f32;
  c.length = 8;
  c.micro_batches = 1;
  c.parallel = c.overlap_updates = overlap;
  return options_of(c, nullptr);
}

TEST(DivisionTrials, change_no_bit_and_come_to_an_end) {
  const auto train = [](Device& device, bool overlap) {
    const SessionOptions o = small_options(overlap);
    Session session(device, o);
    session.initialise_parameters(1);
    for (int step = 0; step < 150; ++step) {
      MicroBatch batch{.batch = 1, .length = 8};
      for (int i = 0; i < 8; ++i) {
        batch.tokens.push_back((i * i + step) % 23);
        batch.labels.push_back((i * 7 + step) % 23);
      }
      session.step(std::span(&batch, 1), 1e-2, 0.1);
      if (step % 10 == 3) session.flush_updates();  // such a step is not timed
    }
    if (overlap) {
      EXPECT_TRUE(dynamic_cast<StreamExecutor&>(*session.executor()).division().settled());
    }
    return weight_digest(session);
  };
  CpuDevice cpu;
  Divided divided;
  EXPECT_EQ(train(divided, true), train(cpu, false));
}

TEST(DivisionTrials, a_given_number_is_not_tried_out) {
  Divided divided;
  SessionOptions o = small_options(true);
  o.ranks.executor.update_processors = 20;
  Session session(divided, o);
  EXPECT_EQ(dynamic_cast<StreamExecutor&>(*session.executor()).division().processors(), 20);
}

}  // namespace
}  // namespace weft
