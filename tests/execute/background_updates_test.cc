#include "weft/execute/background_updates.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace weft {
namespace {

using ::testing::ElementsAre;
using ::testing::Pair;

TEST(InBackground, is_what_is_done_in_time) {
  // Left by the step before, needed at 0, 20 and 40; this step's, ready at 50, 60 and 90 of 100.
  const std::vector<BackgroundUpdate> updates{{0, 0, 15},    {0, 20, 15},   {0, 40, 30},
                                              {50, 100, 30}, {60, 100, 15}, {90, 100, 15}};
  std::vector<std::pair<double, double>> times;
  for (const auto& t : in_background(updates)) times.emplace_back(t ? t->start : -1, t ? t->end : -1);
  EXPECT_THAT(times, ElementsAre(Pair(-1, -1), Pair(0, 15), Pair(-1, -1), Pair(50, 80), Pair(80, 95), Pair(-1, -1)));
}

}  // namespace
}  // namespace weft
