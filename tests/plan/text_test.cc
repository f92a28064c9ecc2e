// The JSON form holds everything that an executor uses.
#include "weft/plan/text.h"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "tests/plan/random_plans.h"

namespace weft {
namespace {

// A woven plan on 2 x 2 ranks, in which lanes take over memory from each other.
struct Sample {
  RandomCase origin;
  Plan plan;
  MemoryPlan memory;
  Json json;
};
Sample sample() {
  Sample s;
  s.origin.pattern = "[*E]-E";
  s.origin.expert_ranks = s.origin.expert_shards = 2;
  s.origin.options.micro_batches = 3;
  s.origin.options.weave = s.origin.options.delay_weight_gradients = true;
  s.origin.shared = true;
  StepPlan step = step_of(s.origin);
  s.plan = std::move(step.plan);
  s.memory = std::move(step.memory);
  s.json = Json::parse(to_json(s.plan, s.memory).dump());
  return s;
}

TEST(PlanJson, holds_what_every_lane_waits_for) {
  const Sample s = sample();
  ASSERT_FALSE(s.memory.reuses.empty()) << "choose a sample in which lanes take over memory from each other";
  const std::vector<LaneMarks> waits = lane_waits(s.plan, s.memory);
  for (std::size_t i = 0; i < s.plan.nodes.size(); ++i) {
    LaneMarks told = no_marks;
    const Json& node = s.json["nodes"][i];
    for (const char* key : {"after", "after_memory"})
      for (const Json& before : node[key]) {
        const auto index = before.get<std::size_t>();
        const auto lane = static_cast<std::size_t>(s.plan.nodes[index].lane);
        if (s.plan.nodes[index].lane != s.plan.nodes[i].lane)
          told[lane] = std::max(told[lane], before.get<std::int32_t>());
      }
    EXPECT_EQ(told, waits[i]) << s.plan.name_of(s.plan.nodes[i]);
  }
}

TEST(PlanJson, holds_what_every_collective_carries) {
  const Sample s = sample();
  int counted = 0, from_a_row = 0;
  for (std::size_t i = 0; i < s.plan.nodes.size(); ++i) {
    const auto collectives = s.plan.collectives_of(s.plan.nodes[i]);
    const Json& list = s.json["nodes"][i]["collectives"];
    ASSERT_EQ(list.size(), collectives.size());
    for (std::size_t c = 0; c < collectives.size(); ++c) {
      EXPECT_EQ(list[c]["kind"], name_of(collectives[c].kind));
      EXPECT_EQ(list[c]["group"], s.plan.name_of(collectives[c].group));
      EXPECT_EQ(list[c]["send"], collectives[c].send.value);
      EXPECT_EQ(list[c]["receive"], collectives[c].receive.value);
      EXPECT_EQ(list[c]["send_counts"], collectives[c].send_counts.value);
      EXPECT_EQ(list[c]["receive_counts"], collectives[c].receive_counts.value);
      EXPECT_EQ(list[c]["first_row"], collectives[c].first_row);
      counted += collectives[c].send_counts.valid();
      from_a_row += collectives[c].first_row > 0;
    }
  }
  EXPECT_GT(counted, 10);
  EXPECT_EQ(from_a_row, 1);  // the norm of the experts' gradients
}

TEST(PlanJson, holds_where_every_buffer_is_and_how_it_is_used) {
  const Sample s = sample();
  EXPECT_EQ(s.json["kind"], "train");
  EXPECT_EQ(s.json["memory"]["arena"], s.memory.arena);
  EXPECT_EQ(s.json["groups"].get<std::vector<std::string>>(), s.plan.groups);
  for (std::size_t b = 0; b < s.plan.buffers.size(); ++b) {
    const Json& buffer = s.json["buffers"][b];
    const ValueInfo& value = s.plan.value_of(BufferId(static_cast<std::int64_t>(b)));
    EXPECT_EQ(buffer["value"], value.name);
    EXPECT_EQ(buffer["micro_batch"], s.plan.buffers[b].micro_batch);
    EXPECT_EQ(buffer["offset"], s.memory.offset[b]);
    EXPECT_EQ(buffer["first_node"], s.memory.lifetimes[b].first);
    EXPECT_EQ(buffer["last_node"], s.memory.lifetimes[b].last);
    EXPECT_EQ(buffer["summed_over"], value.summed_over.valid() ? s.plan.name_of(value.summed_over) : "");
    EXPECT_EQ(buffer["first_summed_row"], value.first_summed_row);
  }
  for (std::size_t i = 0; i < s.plan.nodes.size(); ++i) {
    const auto uses = s.plan.uses_of(s.plan.nodes[i]);
    const Json& list = s.json["nodes"][i]["uses"];
    ASSERT_EQ(list.size(), uses.size());
    for (std::size_t u = 0; u < uses.size(); ++u) {
      EXPECT_EQ(list[u]["buffer"], uses[u].buffer.value);
      EXPECT_EQ(list[u].value("contribution", -1), uses[u].contribution);
    }
  }
}

}  // namespace
}  // namespace weft
