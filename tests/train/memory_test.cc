// The memory that a plan foresees is the memory that a step uses.
#include <gtest/gtest.h>

#include "tests/execute/bitwise_cases.h"

namespace weft {
namespace {

TEST(Memory, TheArenasHighWaterIsWhatThePlanSaid) {
  for (const char* pattern : {"[*-]", "[*E][*E]", "*E-E*", "M[*E]-[GE]", "[+E][+-]/[+E]"})
    for (const bool weave : {false, true}) {
      RankCase c = bitwise_cases(1).front().run;
      c.config.pattern = pattern;
      c.config.mamba = {.heads = 4, .head_dim = 8, .groups = 2, .state = 6, .chunk = 4};
      c.config.delta_net = {.heads = 4, .key_heads = 2, .head_dim = 8, .key_dim = 6, .chunk = 4};
      c.config.latent_attention = {
          .heads = 2, .q_rank = 6, .kv_rank = 6, .head_dim = 4, .rotary_dim = 2, .value_dim = 4};
      CpuDevice device;
      SessionOptions o;
      o.config = c.config;
      o.batch = 2;
      o.length = 32;
      o.plan.micro_batches = 3;
      o.plan.weave = weave;
      Session session(device, o);
      session.initialise_parameters(1);
      c.batch = o.batch;
      c.length = o.length;
      std::vector<MicroBatch> batches;
      for (int m = 0; m < o.plan.micro_batches; ++m) batches.push_back(batch_of(c, 0, m));
      session.step(batches, 1e-3, 0);
      const auto foreseen = static_cast<double>(session.plan().memory().arena),
                 used = static_cast<double>(session.plan().arena_high_water());
      EXPECT_LE(used, foreseen) << pattern;
      EXPECT_GE(used, 0.97 * foreseen) << pattern << " weave " << weave;
    }
}

TEST(Memory, StorageIsWhatThePlanSaid) {
  for (const bool updates : {true, false})  // a probe has no optimizer
    for (const DType dtype : {DType::f32, DType::bf16}) {
      RankCase c = small_case("[*E]M-");
      c.dtype = dtype;
      SessionOptions o = options_of(c, nullptr);
      o.plan.kind = updates ? PlanKind::train : PlanKind::gradients;
      CpuDevice device;
      const Session session(device, o);
      const MemoryPlan& plan = session.plan().memory();
      EXPECT_EQ(plan.states > 0, updates);
      const std::int64_t planned = plan.weights + plan.gradients + plan.states,
                         used = static_cast<std::int64_t>(session.storage().bytes());
      EXPECT_GE(used, planned);
      EXPECT_LE(used, planned + 5 * 256 * std::ssize(session.module().parameters)) << "rounded up to 256 bytes each";
    }
}

}  // namespace
}  // namespace weft
