// Thread ranks that share one GPU: collectives in its memory, and whole steps with experts and data spread over ranks.
#include <gtest/gtest.h>

#include "tests/comm/collective_checks.h"
#include "tests/device/cuda/shared_gpu.h"
#include "tests/execute/bitwise_cases.h"
#include "weft/comm/nccl_world.h"
#include "weft/device/cuda_device.h"

namespace weft {
namespace {

RankRun on_gpu(const RankCase& c, World* world) {
  const std::unique_ptr<Device> device = make_cuda_device();
  return run_rank(c, world, *device);
}

std::vector<std::string> gpu_lines(const NamedCase& c) { return lines_of(c.name, run_ranks(c.run, on_gpu)); }

// Large enough for the kernels of real models: tensor cores, fused attention, grouped products.
NamedCase tensor_core_case(int expert_ranks) {
  NamedCase c;
  c.name = fmt::format("[*E][*E]-, hidden 256, ep={}", expert_ranks);
  c.run.config.pattern = "[*E][*E]-";
  c.run.config.hidden = 256;
  c.run.config.vocabulary = 512;
  c.run.config.attention = {.heads = 4, .kv_heads = 2, .head_dim = 64};
  c.run.config.mlp.ffn = 512;
  c.run.config.experts.experts = 8;
  c.run.config.experts.ffn = 128;
  c.run.config.experts.router.k = 2;
  c.run.dtype = DType::bf16;
  c.run.ranks = 4;
  c.run.expert_ranks = expert_ranks;
  c.run.micro_batches = 4;
  c.run.steps = 4;
  c.run.length = 192;
  return c;
}

class CudaRanks : public testing::TestWithParam<int> {};

TEST_P(CudaRanks, EveryOrderGivesTheBitsOfThePlainSerialOne) {
  std::vector<NamedCase> cases = bitwise_cases(GetParam());
  for (int expert_ranks : {2, 4})
    if (GetParam() == 4) cases.push_back(tensor_core_case(expert_ranks));
  for (const NamedCase& c : cases) {
    const std::vector<std::string> plain = gpu_lines(c);
    for (const auto& [weave, delay, overlap, parallel] : {std::tuple{false, false, false, true},
                                                          {true, false, false, true},
                                                          {true, true, false, true},
                                                          {false, true, true, true}}) {
      NamedCase other = c;
      other.run.weave = weave;
      other.run.delay = delay;
      other.run.overlap_updates = overlap;
      other.run.parallel = parallel;
      EXPECT_EQ(gpu_lines(other), plain) << c.name << ": weave " << weave << " delay " << delay << " overlap "
                                         << overlap << " parallel " << parallel;
    }
  }
}

// Spread over ranks or not, on a GPU or on a CPU: the same model.
TEST_P(CudaRanks, LossesAreThoseOfTheCpu) {
  for (const NamedCase& c : bitwise_cases(GetParam())) {
    NamedCase woven = c;
    woven.run.weave = woven.run.parallel = true;
    const RankRun gpu = run_ranks(woven.run, on_gpu), cpu = run_ranks(c.run);
    ASSERT_EQ(gpu.losses.size(), cpu.losses.size());
    const double limit = c.run.dtype == DType::f32 ? 1e-4 : 2e-2;  // bf16: a few of its roundings, 2^-8 each
    for (std::size_t i = 0; i < cpu.losses.size(); ++i)
      EXPECT_NEAR(gpu.losses[i], cpu.losses[i], limit * std::abs(cpu.losses[i])) << c.name << ", loss " << i;
  }
}

RankRun over_nccl(const RankCase& c, World* world) {
  const std::unique_ptr<Device> device = make_cuda_device();
  const std::unique_ptr<World> nccl = make_nccl_world(*world);
  return run_rank(c, nccl.get(), *device);
}

TEST_P(CudaRanks, NcclGivesTheBitsOfThreads) {
  if (const std::string why = why_no_shared_gpu(); !why.empty()) GTEST_SKIP() << why;
  std::vector<NamedCase> cases = bitwise_cases(GetParam());
  if (GetParam() == 4) cases.push_back(tensor_core_case(4));
  for (NamedCase& c : cases) {
    c.run.weave = c.run.parallel = true;
    EXPECT_EQ(lines_of(c.name, run_ranks(c.run, over_nccl)), gpu_lines(c)) << c.name;
  }
}

// Every strategy, and two instances of the optimizer where there are four ranks.
std::vector<NamedCase> sharded_cases(int ranks) {
  using enum ShardingStrategy;
  std::vector<NamedCase> cases;
  for (const ShardingStrategy strategy : {no_shard, optim, optim_grads, optim_grads_params})
    for (const int instances : {1, 2})
      for (const bool divided : {false, true}) {
        if ((instances == 2 && (ranks < 4 || strategy == no_shard)) ||
            (divided && (instances == 1 || strategy != optim_grads_params)))
          continue;
        NamedCase c = tensor_core_case(2);
        c.run.ranks = ranks;
        c.run.micro_batches = 3;
        c.run.steps = 3;
        c.run.config.tied_embeddings = divided;
        c.run.sharding = strategy;
        c.run.instances = instances;
        c.run.shard_over_instances = divided;
        c.name = fmt::format("{} ranks {} in {} instances{}", ranks, name_of(strategy), instances,
                             divided ? ", divided" : "");
        cases.push_back(c);
      }
  return cases;
}

TEST_P(CudaRanks, EveryShardingStrategyGivesTheBitsOfItsPlainStep) {
  for (const NamedCase& c : sharded_cases(GetParam())) {
    const std::vector<std::string> plain = gpu_lines(c);
    for (const bool late : {false, true}) {
      NamedCase woven = c;
      woven.run.weave = woven.run.delay = woven.run.parallel = true;
      woven.run.overlap_updates = woven.run.two_buffers = late;
      woven.run.gather_by_piece = !late;
      EXPECT_EQ(gpu_lines(woven), plain) << c.name << ", late updates: " << late;
    }
  }
}

TEST_P(CudaRanks, EveryShardingStrategyHasTheSameBitsOverNccl) {
  if (const std::string why = why_no_shared_gpu(); !why.empty()) GTEST_SKIP() << why;
  for (const NamedCase& c : sharded_cases(GetParam())) {
    const std::vector<std::string> plain = lines_of(c.name, run_ranks(c.run, over_nccl));
    NamedCase woven = c;
    woven.run.weave = woven.run.delay = woven.run.parallel = woven.run.overlap_updates = true;
    EXPECT_EQ(lines_of(c.name, run_ranks(woven.run, over_nccl)), plain) << c.name;
    EXPECT_EQ(gpu_lines(c), plain) << c.name << ", between threads";
  }
}

INSTANTIATE_TEST_SUITE_P(OnRanks, CudaRanks, testing::Values(2, 4), testing::PrintToStringParamName());

}  // namespace
}  // namespace weft
