// A checkpoint is of no layout: what ranks that divide layers have saved, any others load.
#include <gtest/gtest.h>

#include "tests/data/temporary_folder.h"
#include "tests/execute/ranks.h"
#include "weft/train/checkpoint_saver.h"
#include "weft/train/save_load.h"

namespace weft {
namespace {

struct Place {
  int ranks, tensor, expert_tensor, expert;
  ShardingStrategy sharding;
};

RankCase in_layout(const Place& place, DType dtype) {
  RankCase c = small_case("[*E]-M/*-");
  c.config.experts.shared_ffn = 8;
  c.config.experts.bias = c.config.mlp.bias = false;
  c.config.mamba.groups = 4;
  c.config.vocabulary = 21;  // tensor ranks have padding
  c.dtype = dtype;
  c.length = 8;
  c.micro_batches = 4 * place.tensor / place.ranks;
  c.ranks = place.ranks;
  c.tensor_ranks = place.tensor;
  c.expert_tensor_ranks = place.expert_tensor;
  c.expert_ranks = place.expert;
  c.sequence = place.tensor > 2;
  c.sharding = place.sharding;
  return c;
}

// The digest of all parameters and moments after `body`, on every rank.
std::string on_ranks(const RankCase& c, const std::function<void(Session&)>& body) {
  std::string digest;
  const auto on_rank = [&](World* world) {
    CpuDevice device;
    Session session(device, options_of(c, world));
    body(session);
    const std::string own = weight_digest(session) + state_digest(session);
    if (!world || world->rank().value == 0) digest = own;
  };
  if (c.ranks == 1)
    on_rank(nullptr);
  else
    LocalCluster(c.ranks).run([&](World& world) { on_rank(&world); });
  return digest;
}

class TensorCheckpoints : public testing::TestWithParam<DType> {};

TEST_P(TensorCheckpoints, go_from_any_layout_to_any_other) {
  using enum ShardingStrategy;
  const Place places[] = {{4, 2, 2, 2, no_shard},   {1, 1, 1, 1, no_shard},           {2, 2, 1, 2, no_shard},
                          {4, 4, 2, 1, no_shard},   {4, 2, 1, 2, optim_grads_params}, {4, 1, 1, 4, optim},
                          {4, 2, 4, 1, optim_grads}};
  const TemporaryFolder folder;
  std::string before;
  std::int64_t steps = 0;
  for (const Place& place : places) {
    const RankCase c = in_layout(place, GetParam());
    SCOPED_TRACE(fmt::format("{} ranks, tp {}", place.ranks, place.tensor));
    const std::string from = folder.file(fmt::format("at{}", steps)), to = folder.file(fmt::format("at{}", steps + 1));
    if (steps > 0) {
      const std::string loaded = on_ranks(c, [&](Session& session) {
        session.initialise_parameters(6);
        load_checkpoint(session, RunCheckpoint(from + fmt::format("/iter_{:07}", steps)), {});
      });
      EXPECT_EQ(loaded, before);
    }
    before = on_ranks(c, [&](Session& session) {
      session.initialise_parameters(5);
      if (steps > 0) load_checkpoint(session, RunCheckpoint(from + fmt::format("/iter_{:07}", steps)), {});
      std::vector<MicroBatch> batches;
      for (int m = 0; m < c.micro_batches; ++m)
        batches.push_back(batch_of(c, steps, session.options().layout.shard_of(m)));
      session.step(batches, 1e-2, 0.1);
      save_checkpoint(session, {to}, {steps + 1, 4, steps + 1}, "{}");
    });
    ++steps;
  }
}

INSTANTIATE_TEST_SUITE_P(In, TensorCheckpoints, testing::Values(DType::f32, DType::bf16),
                         [](const auto& of) { return std::string(name_of(of.param)); });

}  // namespace
}  // namespace weft
