// Sessions over NCCL. When a rank fails, its streams run empty, and what is then in memory is not taken for a result; and
// what communicators hold is counted.
#include <atomic>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "tests/comm/nccl/fake_nccl.h"
#include "tests/execute/queued_cpu_device.h"
#include "tests/execute/ranks.h"
#include "weft/base/error.h"
#include "weft/comm/host_stream.h"
#include "weft/comm/nccl/world.h"
#include "weft/execute/stream_executor.h"

namespace weft {
namespace {

// What rank 0 ends with if rank 1 fails where it ought to do the same.
std::string ends_with(RankCase c, const std::function<void(Session&)>& action) {
  c.ranks = 2;
  std::string what = "nothing";
  LocalCluster cluster(c.ranks);
  const auto library = fake_nccl();
  const auto run = [&](World& base) {
    const bool fails = base.rank().value == 1;
    QueuedCpuDevice device(fmt::format("gpu {}", base.rank().value));
    const std::unique_ptr<World> world = nccl::make_world(base, library);
    Session session(device, options_of(c, world.get()));
    session.initialise_parameters(5);
    HostStream host;
    base.make_group_of_all("ready")->barrier(host);  // it fails in the action, not before
    try {
      if (fails) throw RunError("the loss is a potato");
      action(session);
    } catch (const std::exception& e) {
      if (!fails) what = e.what();
      throw;
    }
  };
  EXPECT_THROW(cluster.run(run), RunError);
  EXPECT_EQ(FakeNccl::misuses(), 0);
  return what;
}

TEST(NcclSession, ThatLosesARankHasNoResult) {
  const char* potato = "rank 1 failed: the loss is a potato";
  const RankCase dense = small_case("[*-]");
  RankCase experts = small_case("[*E]");
  experts.expert_ranks = 2;
  for (const RankCase& c : {dense, experts}) {
    const auto step = [&](Session& session) { session.step({{batch_of(c, 0, 0), batch_of(c, 0, 1)}}, 1e-2, 0.1); };
    EXPECT_EQ(ends_with(c, [&](Session& session) { session.evaluator().loss(batch_of(c, 0, 0)); }), potato);
    EXPECT_EQ(ends_with(c, step), potato);
    RankCase parallel = c;
    parallel.parallel = true;
    EXPECT_EQ(ends_with(parallel, step), potato);
    const std::int64_t word = 7;
    EXPECT_EQ(ends_with(c, [&](Session& session) { session.ranks().gather({&word, 1}); }), potato);
  }
  std::vector<std::byte> bytes(3);
  EXPECT_EQ(ends_with(experts, [&](Session& session) { session.ranks().send_to_first(RankId(1), bytes); }), potato);
}

// Ranks whose steps wait for nothing on the host replay them as graphs, with the same bits; and the log tells why others
// do not.
TEST(NcclSession, ReplaysStepsOfSeveralRanksAsGraphs) {
  const auto losses_of = [](RankCase c, bool graph, std::string& text, bool& was_graph) {
    c.ranks = 2;
    c.parallel = true;
    c.graph = graph;
    std::vector<double> losses;
    std::string digest;
    const auto library = fake_nccl();
    LocalCluster(2).run([&](World& base) {
      QueuedCpuDevice device(fmt::format("gpu {}", base.rank().value));
      const std::unique_ptr<World> world = nccl::make_world(base, library);
      const SessionOptions o = options_of(c, world.get());
      Session session(device, o);
      session.initialise_parameters(5);
      std::vector<double> own;
      for (int step = 0; step < 4; ++step) {
        std::vector<MicroBatch> batches;
        for (int m = 0; m < c.micro_batches; ++m) batches.push_back(batch_of(c, step, o.layout.shard_of(m)));
        const StepResult result = session.step(batches, 1e-2, 0.1);
        own.push_back(result.loss);
        own.push_back(*result.gradient_norm);
      }
      if (base.rank().value != 0) return;
      losses = own;
      text = session.executor()->launch_text();
      const auto* stream = dynamic_cast<StreamExecutor*>(session.executor());
      was_graph = stream && stream->was_graph();
    });
    EXPECT_EQ(FakeNccl::misuses(), 0);
    return losses;
  };
  std::string text;
  bool was_graph = false;
  const RankCase dense = small_case("[*-]");
  const std::vector<double> queued = losses_of(dense, false, text, was_graph);
  EXPECT_FALSE(was_graph);
  EXPECT_EQ(text, "a step is queued node by node, not as a CUDA graph: graphs are off");
  EXPECT_EQ(losses_of(dense, true, text, was_graph), queued);
  EXPECT_TRUE(was_graph);
  EXPECT_EQ(text, "a step is one CUDA graph");

  RankCase experts = small_case("[*E]");
  experts.expert_ranks = 2;
  losses_of(experts, true, text, was_graph);
  EXPECT_FALSE(was_graph);
  EXPECT_EQ(text,
            "a thread per lane queues a step, not a CUDA graph: the host waits for the numbers of rows that ranks "
            "exchange");
}

// Of so many bytes, of which what is allocated is no longer free.
class Finite : public QueuedCpuDevice {
 public:
  Finite(const std::string& identity, std::size_t bytes) : QueuedCpuDevice(identity), free_(bytes) {}
  std::unique_ptr<Memory> allocate(std::size_t bytes) override {
    free_ -= bytes;
    return QueuedCpuDevice::allocate(bytes);
  }
  std::size_t free_bytes() const override { return free_; }

 private:
  std::atomic<std::size_t> free_;
};

TEST(NcclSession, CountsWhatItsCommunicatorsHold) {
  RankCase c = small_case("[*E]");
  c.ranks = c.expert_ranks = 2;
  const auto need_with = [&](std::size_t bytes) {
    MemoryNeed need;
    const auto library = fake_nccl();
    LocalCluster(2).run([&](World& base) {
      Finite device(fmt::format("gpu {}", base.rank().value), bytes);
      const std::unique_ptr<World> world = nccl::make_world(base, library);
      const Session session(device, options_of(c, world.get()));
      if (base.rank().value == 0) need = session.memory_need();
    });
    return need;
  };
  const MemoryNeed need = need_with(std::size_t{1} << 40);
  EXPECT_GE(need.communicators, 32 << 20);
  const auto enough = static_cast<std::size_t>(need.total() + need.communicators);
  EXPECT_NO_THROW(need_with(enough));
  try {
    need_with(enough - 1);
    FAIL() << "nothing was thrown";
  } catch (const UserError& error) {
    EXPECT_NE(std::string(error.what()).find("of memory per rank, and"), std::string::npos) << error.what();
  }
}

}  // namespace
}  // namespace weft
