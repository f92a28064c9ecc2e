// What checkpoints say of how far a run has come.
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "tests/data/temporary_folder.h"
#include "weft/base/error.h"
#include "weft/checkpoint/model_description.h"

namespace weft {
namespace {

SavedRun saved_run() {
  SavedRun run;
  run.position = {12, 96, 9, {4, 1.0 / 3, 0.125, {0.1}, 2, 1}, 2, {1.0 / 7, true, true}};
  run.ranks = 4;
  run.arguments = R"({"seed":7})";
  return run;
}

TEST(SavedRun, ComesBackWithAllItsBits) {
  const SavedRun run = saved_run(), back = saved_run_of(Json::parse(to_json(run).dump()), "here");
  EXPECT_EQ(back.position.iteration, 12);
  EXPECT_EQ(back.position.consumed_samples, 96);
  EXPECT_EQ(back.position.optimizer_steps, 9);
  EXPECT_EQ(back.position.unlogged, run.position.unlogged);
  EXPECT_EQ(back.position.not_finite_in_a_row, 2);
  EXPECT_EQ(back.position.loss_trend, run.position.loss_trend);
  EXPECT_EQ(back.ranks, 4);
  EXPECT_EQ(back.arguments, run.arguments);
}

TEST(SavedRun, OfAnOlderVersionHasNothingSkippedAndNoTrend) {
  Json json = to_json(saved_run());
  for (const char* newer : {"unlogged", "not_finite_in_a_row", "loss_trend"}) EXPECT_EQ(json.erase(newer), 1u) << newer;
  const SavedRun back = saved_run_of(json, "here");
  EXPECT_EQ(back.position.iteration, 12);
  EXPECT_EQ(back.position.unlogged, LogSums{});
  EXPECT_EQ(back.position.not_finite_in_a_row, 0);
  EXPECT_EQ(back.position.loss_trend, LossTrend{});
}

TEST(SavedRun, ThatIsDamagedIsAnError) {
  for (const auto& [key, value] : {std::pair<const char*, Json>{"iteration", "x"},
                                   {"not_finite_in_a_row", "x"},
                                   {"loss_trend", Json::object()},
                                   {"loss_trend", 7}}) {
    Json json = to_json(saved_run());
    json[key] = value;
    EXPECT_EQ(message_of<UserError>([&] { saved_run_of(json, "here"); }),
              "here: it does not say how far the run has come")
        << key;
  }
}

}  // namespace
}  // namespace weft
