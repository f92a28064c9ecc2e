// What is counted before a run is what it takes: the plan, what operations work in, and what libraries take besides.
#include <gtest/gtest.h>

#include "tests/device/cuda/shared_gpu.h"
#include "weft/comm/host_stream.h"
#include "weft/comm/local/cluster.h"
#include "weft/comm/nccl_world.h"
#include "weft/device/cuda_device.h"
#include "weft/device/operations.h"
#include "weft/execute/stream_executor.h"
#include "weft/train/session.h"

namespace weft {
namespace {

// All kinds of layers whose operations need scratch memory; some 300 M parameters.
SessionOptions model_of_some_gigabytes(bool late_updates) {
  SessionOptions o;
  o.config.pattern = "*EM-GE";
  o.config.hidden = 1024;
  o.config.vocabulary = 32000;
  o.config.attention.heads = 8;
  o.config.attention.kv_heads = 2;
  o.config.attention.head_dim = 128;
  o.config.mlp.ffn = 4096;
  o.config.mamba.heads = 32;
  o.config.mamba.head_dim = 64;
  o.config.mamba.groups = 2;
  o.config.mamba.state = 128;
  o.config.delta_net.key_heads = 4;
  o.config.delta_net.heads = 8;
  o.config.delta_net.key_dim = o.config.delta_net.head_dim = 128;
  o.config.experts.experts = 32;
  o.config.experts.ffn = 1024;
  o.config.experts.router.k = 4;
  o.precision.compute = DType::bf16;
  o.batch = 2;
  o.length = 2048;
  o.ranks.parallel = true;
  o.plan.overlap_updates = late_updates;
  return o;
}

// Random numbers would take long to make.
void train_three_steps(Session& session) {
  const Operations& ops = session.device().operations();
  for (std::size_t i = 0; i < session.module().parameters.size(); ++i) {
    const ParameterStates& states = session.module().states[i];
    ops.fill(session.stream(), {session.storage().weight(TensorId(static_cast<std::int64_t>(i))), 0.01});
    for (ValueId state : {states.m, states.v, states.remainder})
      if (state.valid()) ops.fill(session.stream(), {session.storage().state(state), 0.01});
  }
  MicroBatch batch;
  batch.batch = 2;
  batch.length = 2048;
  for (std::int32_t i = 0; i < 2 * 2048; ++i) {
    batch.tokens.push_back(i * 7 % 32000);
    batch.labels.push_back(i * 11 % 32000);
  }
  for (int step = 0; step < 3; ++step) session.step(std::span(&batch, 1), 1e-4, 0.1);
}

void expect_as_counted(bool late_updates) {
  const std::unique_ptr<Device> device = make_cuda_device();
  const std::size_t before = device->free_bytes();
  Session session(*device, model_of_some_gigabytes(late_updates));
  train_three_steps(session);
  const auto& executor = dynamic_cast<const StreamExecutor&>(*session.executor());
  const MemoryNeed& need = session.memory_need();
  EXPECT_EQ(session.stream().held_bytes() + executor.held_bytes(), need.streams.total())
      << "an operation asked for more than was counted";
  const auto measured = static_cast<double>(before - device->free_bytes()), counted = static_cast<double>(need.total());
  std::printf("counted %.1f MiB (plan %.1f, streams %.1f, libraries %.1f), measured %.1f\n", counted / (1 << 20),
              static_cast<double>(need.plan.total()) / (1 << 20), static_cast<double>(need.streams.total()) / (1 << 20),
              static_cast<double>(need.library_bytes) / (1 << 20), measured / (1 << 20));
  EXPECT_NEAR(counted / measured, 1, 0.03);
}

// Two thread ranks on one GPU. What communicators hold is measured when they are made, before memory is asked for.
void expect_of_ranks_as_counted(bool nccl) {
  const std::unique_ptr<Device> device = make_cuda_device();
  const std::size_t before = device->free_bytes();
  LocalCluster(2, {.timeout = 60}).run([&](World& base) {
    const std::unique_ptr<Device> own = make_cuda_device();
    const std::unique_ptr<World> over = nccl ? make_nccl_world(base) : nullptr;
    SessionOptions options = model_of_some_gigabytes(false);
    options.ranks.world = over ? over.get() : &base;
    options.layout = Layout::of_data_and_experts(2, 2, options.ranks.world->rank());
    options.ranks.on_device = 2;
    Session session(*own, options);
    train_three_steps(session);
    HostStream host;
    base.make_group_of_all("trained")->barrier(host);
    const MemoryNeed& need = session.memory_need();
    const auto measured = static_cast<double>(before - own->free_bytes()) / 2,
               counted = static_cast<double>(need.total() + need.communicators);
    if (base.rank().value == 0)
      std::printf("a rank: counted %.1f MiB (communicators %.1f), measured %.1f\n", counted / (1 << 20),
                  static_cast<double>(need.communicators) / (1 << 20), measured / (1 << 20));
    EXPECT_NEAR(counted / measured, 1, 0.03);
    base.make_group_of_all("measured")->barrier(host);
  });
}

TEST(CudaMemory, IsWhatWasCounted) { expect_as_counted(false); }
TEST(CudaMemory, IsWhatWasCountedWithLateUpdates) { expect_as_counted(true); }
TEST(CudaMemory, OfRanksIsWhatWasCounted) { expect_of_ranks_as_counted(false); }
TEST(CudaMemory, OfRanksOverNcclIsWhatWasCounted) {
  if (const std::string why = why_no_shared_gpu(); !why.empty()) GTEST_SKIP() << why;
  expect_of_ranks_as_counted(true);
}

}  // namespace
}  // namespace weft
