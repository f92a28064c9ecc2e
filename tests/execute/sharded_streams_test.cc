// Late updates of divided weights, on a device that queues its work: the update writes a part, a gather reads it, and
// nodes read what was gathered. No node waits for the update itself, but for a gather on another lane, which does.
#include <gtest/gtest.h>

#include "tests/comm/nccl/fake_nccl.h"
#include "tests/execute/queued_cpu_device.h"
#include "tests/execute/ranks.h"
#include "weft/comm/nccl/world.h"
#include "weft/execute/stream_executor.h"

namespace weft {
namespace {

constexpr ShardingStrategy strategies[] = {ShardingStrategy::no_shard, ShardingStrategy::optim,
                                           ShardingStrategy::optim_grads, ShardingStrategy::optim_grads_params};

RankCase late_case(ShardingStrategy strategy, double clip) {
  RankCase c = small_case("[*-][*-][*-]");
  c.ranks = 2;
  c.steps = 4;
  c.sharding = strategy;
  c.clip = clip;
  c.overlap_updates = c.parallel = true;
  return c;
}

// Updates take long enough for whoever does not wait for them to be there first.
class SlowUpdates : public QueuedCpuDevice {
 public:
  explicit SlowUpdates(const std::string& identity)
      : QueuedCpuDevice(identity), operations_(QueuedCpuDevice::operations()) {
    operations_.adamw = [](Stream& stream, const AdamW& arguments) {
      static_cast<QueuedStream&>(stream).push([] { std::this_thread::sleep_for(std::chrono::milliseconds(1)); });
      queue_operation<&Operations::adamw, AdamW>(stream, arguments);
    };
  }
  const Operations& operations() const override { return operations_; }

 private:
  Operations operations_;
};

RankRun run_on_streams(const RankCase& c) {
  const auto library = fake_nccl();
  const RankRun run = run_ranks(c, [&](const RankCase& own, World* base) {
    SlowUpdates device(fmt::format("gpu {}", base->rank().value));
    const std::unique_ptr<World> world = nccl::make_world(*base, library);
    return run_rank(own, world.get(), device);
  });
  EXPECT_EQ(FakeNccl::misuses(), 0);
  return run;
}

TEST(ShardedStreams, see_late_updates_through_gathers) {
  for (const ShardingStrategy strategy : strategies)
    for (const double clip : {1., 0.}) {
      const RankCase late = late_case(strategy, clip);
      RankCase plain = late;
      plain.overlap_updates = plain.parallel = false;
      const RankRun wanted = run_on_streams(plain);
      for (const bool graph : {false, true}) {
        RankCase c = late;
        c.graph = graph;
        const RankRun run = run_on_streams(c);
        EXPECT_EQ(run.losses, wanted.losses) << name_of(strategy) << " clip " << clip << " graph " << graph;
        EXPECT_EQ(run.norms, wanted.norms) << name_of(strategy) << " clip " << clip << " graph " << graph;
        EXPECT_TRUE(run.parameters == wanted.parameters) << name_of(strategy) << " clip " << clip << " graph " << graph;
      }
    }
}

// What a node knows to be done includes the update of every weight that it reads, whole or gathered.
TEST(ShardedStreams, know_that_updates_are_done) {
  for (const ShardingStrategy strategy : strategies)
    for (const double clip : {1., 0.})
      for (const bool weave : {false, true}) {
        RankCase c = late_case(strategy, clip);
        c.config.pattern = "[*E][*-]";
        c.weave = weave;
        SessionOptions options = options_of(c, nullptr);
        options.layout = Layout::of_data_and_experts(4, 2);
        const StepPlan step = plan_step(training_step(options));
        const Plan& plan = step.plan;
        const std::vector<LaneMarks> waits = lane_waits(plan, step.memory), done = done_before(plan, waits);
        std::map<TensorId, std::int32_t> carried;  // updates at the beginning of the step, by tensor
        int readers = 0;
        for (std::size_t i = 0; i < plan.nodes.size(); ++i)
          for (const BufferUse& use : plan.uses_of(plan.nodes[i])) {
            const ValueInfo& value = plan.value_of(use.buffer);
            if (plan.nodes[i].carried && value.storage == StorageClass::weight && use.access == Access::write)
              carried[value.tensor] = static_cast<std::int32_t>(i);
            if (plan.nodes[i].carried || use.access != Access::read || !carried.contains(value.tensor) ||
                (value.storage != StorageClass::weight && value.storage != StorageClass::gathered))
              continue;
            ++readers;
            EXPECT_GE(done[i][static_cast<std::size_t>(Lane::update)], carried[value.tensor])
                << name_of(strategy) << ": " << plan.name_of(plan.nodes[i]);
          }
        EXPECT_GT(readers, clip > 0 ? 10 : 0) << name_of(strategy);  // without a norm a third of them is carried
      }
}

// Of how many processors nodes were told to leave room, on any stream.
class Divided : public QueuedCpuDevice {
 public:
  using QueuedCpuDevice::QueuedCpuDevice;
  int processors() const override { return 8; }
  std::unique_ptr<Stream> make_stream(int) override { return std::make_unique<Told>(*this); }
  std::unique_ptr<Stream> make_urgent_stream() override { return make_stream(1); }
  int told(int processors) const { return told_[static_cast<std::size_t>(processors)]; }
  void forget() { told_ = {}; }

 private:
  class Told : public QueuedCpuStream {
   public:
    explicit Told(Divided& device) : QueuedCpuStream(device.cpu_), device_(device) {}
    void use_processors(int count) override { ++device_.told_[static_cast<std::size_t>(count)]; }

   private:
    Divided& device_;
  };
  CpuDevice cpu_;
  std::array<int, 9> told_{};
};

// Processors are shared while updates are under way, and not after the nodes that need the last of them.
TEST(ShardedStreams, share_processors_with_updates_until_these_are_needed) {
  for (const ShardingStrategy strategy : strategies) {
    const RankCase c = late_case(strategy, 1);
    const auto library = fake_nccl();
    std::array<int, 9> told{};
    LocalCluster(c.ranks).run([&](World& base) {
      Divided device(fmt::format("gpu {}", base.rank().value));
      const std::unique_ptr<World> world = nccl::make_world(base, library);
      SessionOptions options = options_of(c, world.get());
      options.ranks.executor.update_processors = 2;
      options.ranks.executor.graph = false;
      Session session(device, options);
      session.initialise_parameters(5);
      ASSERT_NE(dynamic_cast<StreamExecutor*>(session.executor()), nullptr);
      for (int step = 0; step < 2; ++step) {  // the first one divides nothing
        device.forget();
        std::vector<MicroBatch> batches;
        for (int m = 0; m < c.micro_batches; ++m) batches.push_back(batch_of(c, step, options.layout.shard_of(m)));
        session.step(batches, 1e-2, 0.1);
      }
      if (base.rank().value != 0) return;
      for (int n = 0; n <= 8; ++n) told[static_cast<std::size_t>(n)] = device.told(n);
    });
    EXPECT_GT(told[2], 0) << name_of(strategy);
    EXPECT_GT(told[6], 0) << name_of(strategy);
    EXPECT_GT(told[8], told[6]) << name_of(strategy) << ": backward needs all weights";
  }
}

}  // namespace
}  // namespace weft
