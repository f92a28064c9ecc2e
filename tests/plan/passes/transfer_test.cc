// Stages of a pipeline: which chunk holds what, and what travels between them.
#include <algorithm>

#include <gtest/gtest.h>

#include "tests/plan/plans.h"
#include "weft/base/error.h"
#include "weft/plan/check/check_ranks.h"

namespace weft {
namespace {

StepOptions staged(const std::string& pattern, LayoutSizes sizes, int micro_batches) {
  StepOptions o;
  o.config = small_config(pattern);
  o.module.batch = 2;
  o.module.length = 3;
  o.module.layout = Layout::of(sizes);
  o.plan.micro_batches = micro_batches;
  return o;
}

void expect_valid(const StepOptions& options, const std::string& what) {
  const LayoutPlans plans(options);
  for (const PlanFault& fault : check_ranks(plans.ranks())) ADD_FAILURE() << what << ": " << fault.message;
}

// The pieces of a stage's forward pass, chunk by chunk.
std::string pieces_of(const Module& module) {
  std::string text;
  int chunk = 0;
  for (const Piece& piece : module.pieces) {
    for (; chunk < piece.place.chunk; ++chunk) text += "| ";
    text += piece.place.layer + " ";
  }
  return text;
}

std::vector<std::string> stages_of(const StepOptions& options) {
  const LayoutPlans plans(options);
  std::vector<std::string> stages;
  for (const auto& step : plans.steps()) stages.push_back(pieces_of(step->module));
  return stages;
}

TEST(PipelineStages, hold_their_segments_alone) {
  using Texts = std::vector<std::string>;
  EXPECT_EQ(stages_of(staged("M*-*", {.pp = 2}, 2)),
            (Texts{"embedding main.0M main.1* ", "main.2- main.3* final_norm head "}));
  EXPECT_EQ(stages_of(staged("M|*|-|*", {.pp = 2}, 2)),
            (Texts{"embedding main.0M | main.2- ", "main.1* | main.3* final_norm head "}));
  EXPECT_EQ(stages_of(staged("|M*|", {.pp = 3}, 3)), (Texts{"embedding ", "main.0M main.1* ", "final_norm head "}));
  EXPECT_EQ(stages_of(staged("*|*|*|/*", {.pp = 2}, 2)),
            (Texts{"embedding main.0* | main.2* ",
                   "main.1* | final_norm mtp1.input mtp1.0* mtp1.final_norm head mtp1.head "}));
  EXPECT_EQ(stages_of(staged("|", {.pp = 2}, 2)), (Texts{"embedding ", "final_norm head "}));
}

TEST(PipelineStages, of_every_kind_have_plans_that_fit_together) {
  int plans = 0;
  for (const char* pattern : {"[*E]|[*-]|[*E]|[*E]", "M*-*/*-", "*|||*/E/E", "[*E]|[*E]|[*E]|/[*E]", "||[*E]M|"})
    for (const auto& [stages, data, experts] : {std::tuple{2, 1, 1}, {2, 2, 2}, {4, 1, 1}, {4, 2, 1}, {2, 4, 2}})
      for (const int micro_batches : {4, 8})
        for (int how = 0; how < 4; ++how)
          for (const ShardingStrategy sharding :
               {ShardingStrategy::no_shard, ShardingStrategy::optim, ShardingStrategy::optim_grads_params})
            for (const OrderKind order : {OrderKind::automatic, OrderKind::zero_bubble}) {
              StepOptions o = staged(pattern, {.dp = data, .pp = stages, .ep = experts}, micro_batches);
              o.plan.weave = (how & 1) != 0;
              o.plan.delay_weight_gradients = (how & 2) != 0;
              o.plan.overlap_updates = how == 3;
              o.plan.order = order;
              o.config.tied_embeddings = how == 2;
              o.module.sharding = sharding;
              try {
                expect_valid(o, fmt::format("{} pp {} dp {} ep {} micro-batches {} how {} {} {}", pattern, stages, data,
                                            experts, micro_batches, how, name_of(sharding), name_of(order)));
                ++plans;
              } catch (const UserError&) {  // an order or a split that does not exist
              }
              if (testing::Test::HasFailure()) return;
            }
  EXPECT_GT(plans, 300);
}

TEST(PipelineStages, evaluate_too) {
  for (const char* pattern : {"[*E]|[*-]|[*E]|[*E]", "*|||*/E/E"}) {
    StepOptions o = staged(pattern, {.dp = 2, .pp = 2, .ep = 2}, 1);
    o.plan.kind = PlanKind::evaluate;
    o.module.keep_logits = true;
    expect_valid(o, pattern);
  }
}

// F1 of the scenarios: a DeepSeek-V3 of 16 layers, 4 stages of 2 virtual ones, 64 expert ranks, MTP in the last chunk.
TEST(PipelineStages, of_256_ranks_are_four_classes_whose_plans_fit_together) {
  StepOptions o = staged("[+-][+E]|[+E][+E]|[+E][+E]|[+E][+E]|[+E][+E]|[+E][+E]|[+E][+E]|[+E][+E]/[+E]",
                         {.dp = 64, .pp = 4, .ep = 64}, 8);
  o.config.experts.experts = 256;
  o.config.experts.router.k = 8;
  for (const bool weave : {false, true}) {
    o.plan.weave = o.plan.delay_weight_gradients = weave;
    const LayoutPlans plans(o);
    EXPECT_EQ(plans.steps().size(), 4u);
    for (std::size_t i = 0; i < 4; ++i) EXPECT_EQ(plans.ranks_in(i), 64);
    for (const PlanFault& fault : check_ranks(plans.ranks())) ADD_FAILURE() << fault.message;
  }
}

// What check_ranks says of damaged plans, whose memory is not looked at.
std::string faults_of(const LayoutPlans& plans) {
  RankPlans ranks = plans.ranks();
  for (std::size_t i = 0; i < plans.steps().size(); ++i)
    ranks.plans[i] = RankPlans::Entry::without_memory(plans.steps()[i]->plan);
  std::string text;
  for (const PlanFault& fault : check_ranks(ranks)) text += fault.message + "\n";
  return text;
}

Plan& plan_of(const LayoutPlans& plans, std::size_t stage) { return plans.steps()[stage]->plan; }

// The n-th transfer of that kind.
NodeCollective& transfer_of(Plan& plan, CollectiveKind kind, int n) {
  for (NodeCollective& c : plan.collectives)
    if (c.kind == kind && n-- == 0) return c;
  throw BugError("no such transfer");
}

TEST(DamagedStages, are_found_by_their_transfers) {
  const StepOptions options = staged("*|*|*", {.pp = 3}, 4);
  EXPECT_EQ(faults_of(LayoutPlans(options)), "");
  for (int n : {0, 3, 5}) {
    const LayoutPlans swapped(options);
    Plan& plan = plan_of(swapped, 1);
    std::swap(transfer_of(plan, CollectiveKind::receive, n).match,
              transfer_of(plan, CollectiveKind::receive, n + 1).match);
    EXPECT_NE(faults_of(swapped).find("meets a receive with match"), std::string::npos) << faults_of(swapped);

    const LayoutPlans elsewhere(options);
    NodeCollective& sent = transfer_of(plan_of(elsewhere, 1), CollectiveKind::send, n);
    sent.peer = 2 - sent.peer;
    const std::string text = faults_of(elsewhere);
    EXPECT_TRUE(text.find("has no send for what is received here") != std::string::npos ||
                text.find("meets a receive with match") != std::string::npos ||
                text.find("has no receive for what is sent here") != std::string::npos)
        << text;
  }
  const LayoutPlans missing(options);
  std::vector<Node>& nodes = plan_of(missing, 0).nodes;
  nodes.erase(std::find_if(nodes.begin(), nodes.end(), [](const Node& node) { return node.lane == Lane::pipe_out; }));
  EXPECT_NE(faults_of(missing).find("is written and never read"), std::string::npos) << faults_of(missing);

  const LayoutPlans wrong_lane(options);
  for (Node& node : plan_of(wrong_lane, 1).nodes)
    if (node.lane == Lane::back_in) node.lane = Lane::back_out;
  EXPECT_NE(faults_of(wrong_lane).find("lane back_out only sends"), std::string::npos) << faults_of(wrong_lane);
}

TEST(DamagedStages, wait_for_each_other_where_their_orders_do_not_fit) {
  const LayoutPlans plans(staged("*|*", {.pp = 2}, 2));
  // The first stage wants the gradient of micro-batch 0 before it sends 1; the last wants 1 before it sends the gradient.
  const auto sort = [](Plan& plan, auto key) {
    std::stable_sort(plan.nodes.begin(), plan.nodes.end(), [&](const Node& a, const Node& b) {
      return a.micro_batch >= 0 && (b.micro_batch < 0 || key(a) < key(b));
    });
  };
  sort(plan_of(plans, 0), [](const Node& node) { return node.micro_batch; });
  EXPECT_EQ(faults_of(plans), "");
  sort(plan_of(plans, 1), [](const Node& node) { return node.phase == Phase::forward ? 0 : 1; });
  const std::string text = faults_of(plans);
  EXPECT_NE(text.find("ranks and lanes wait for each other, and none can proceed"), std::string::npos) << text;
  EXPECT_NE(text.find("segment1.receive@1 waits in receive"), std::string::npos) << text;
}

TEST(DamagedStages, have_the_final_norm_where_its_head_is_not) {
  const LayoutPlans plans(staged("*|*", {.pp = 2}, 2));
  for (PlaceInfo& place : plan_of(plans, 0).places)
    if (place.layer == "main.0*") place.section = Section::final_norm;
  EXPECT_NE(faults_of(plans).find("the final norm stands on a stage without the head that reads it"),
            std::string::npos);
}

}  // namespace
}  // namespace weft
