// What divided parameters take of a rank's memory while steps run: what the plan said.
#include <algorithm>
#include <cstring>
#include <mutex>

#include <gtest/gtest.h>

#include "tests/execute/ranks.h"
#include "weft/plan/divided_memory.h"

namespace weft {
namespace {

constexpr ShardingStrategy strategies[] = {ShardingStrategy::no_shard, ShardingStrategy::optim,
                                           ShardingStrategy::optim_grads, ShardingStrategy::optim_grads_params};

// The CPU, with all its memory painted, so that what was written shows, and with room behind each piece of it that nothing
// may touch.
class Painted : public CpuDevice {
 public:
  std::unique_ptr<Memory> allocate(std::size_t bytes) override {
    auto painted = std::make_unique<Piece>(CpuDevice::allocate(bytes + guard), bytes);
    const std::lock_guard lock(mutex_);
    pieces_.push_back(painted.get());
    return painted;
  }
  // Bytes up to the last one written of everything that is allocated.
  std::int64_t used() const {
    std::int64_t sum = 0;
    for (const Piece* piece : pieces_) sum += static_cast<std::int64_t>(piece->used());
    return sum;
  }
  bool overrun() const {
    return std::any_of(pieces_.begin(), pieces_.end(), [](const Piece* piece) { return piece->overrun(); });
  }

 private:
  static constexpr std::size_t guard = 4096;
  static constexpr std::byte paint{0xA5};

  class Piece : public Memory {
   public:
    Piece(std::unique_ptr<Memory> inner, std::size_t bytes) : inner_(std::move(inner)), bytes_(bytes) {
      std::memset(inner_->data(), static_cast<int>(paint), inner_->bytes());
    }
    std::byte* data() const override { return inner_->data(); }
    std::size_t bytes() const override { return bytes_; }
    std::size_t used() const {
      std::size_t end = bytes_;
      while (end > 0 && data()[end - 1] == paint) --end;
      return end;
    }
    bool overrun() const {
      return std::any_of(data() + bytes_, data() + inner_->bytes(), [](std::byte b) { return b != paint; });
    }

   private:
    std::unique_ptr<Memory> inner_;
    std::size_t bytes_;
  };

  std::mutex mutex_;
  std::vector<const Piece*> pieces_;  // a session's memory lives as long as the session
};

RankCase case_of(const char* pattern) {
  RankCase c = small_case(pattern);
  c.config.hidden = 64;
  c.config.attention = {.heads = 2, .kv_heads = 2, .head_dim = 32};
  c.config.mlp.ffn = 128;
  c.config.experts.ffn = 64;
  c.dtype = DType::f32;
  c.ranks = 4;
  c.micro_batches = 3;
  c.batch = 2;
  c.length = 16;
  c.parallel = true;
  return c;
}

void take_steps(Session& session, const RankCase& c, int steps) {
  for (int step = 0; step < steps; ++step) {
    std::vector<MicroBatch> batches;
    for (int m = 0; m < c.micro_batches; ++m)
      batches.push_back(batch_of(c, step, session.options().layout.shard_of(m)));
    session.step(batches, 1e-2, 0.1);
  }
}

TEST(ShardedMemory, is_within_three_percent_of_the_estimate) {
  for (const ShardingStrategy strategy : strategies)
    for (const bool weave : {false, true}) {
      RankCase c = case_of("[*E][*-][*E]-");
      c.expert_ranks = 2;
      c.sharding = strategy;
      c.weave = weave;
      LocalCluster(c.ranks).run([&](World& world) {
        Painted device;
        Session session(device, options_of(c, &world));
        session.initialise_parameters(5);
        take_steps(session, c, 2);
        const auto foreseen = static_cast<double>(session.memory_need().total()),
                   used = static_cast<double>(device.used());
        EXPECT_NEAR(used / foreseen, 1, 0.03) << name_of(strategy) << " weave " << weave;
        EXPECT_FALSE(device.overrun()) << name_of(strategy) << " weave " << weave;
      });
    }
}

// Eight equal units over four ranks: beside its parts a rank holds two whole units at most, three when woven.
TEST(ShardedMemory, of_running_steps_holds_few_whole_units) {
  for (const bool weave : {false, true})
    for (const bool by_piece : {true, false}) {
      RankCase c = case_of("[*-][*-][*-][*-][*-][*-][*-][*-]");
      c.sharding = ShardingStrategy::optim_grads_params;
      c.weave = weave;
      c.gather_by_piece = by_piece;
      LocalCluster(c.ranks).run([&](World& world) {
        CpuDevice device;
        Session session(device, options_of(c, &world));
        session.initialise_parameters(5);
        session.executor()->keep_times(true);
        take_steps(session, c, 2);
        const Module& module = session.module();
        const Plan& plan = session.plan().plan();
        std::int64_t unit = 0, all = 0;
        const std::vector<int> units = units_of_tensors(module);
        for (std::size_t i = 0; i < units.size(); ++i) {
          const std::int64_t bytes = module.value(module.shards[0][i].whole).shape.elements() * 4;
          all += bytes;
          if (units[i] == 2) unit += bytes;
        }
        // A parameter is there from the beginning of its gather to the end of its release.
        const std::vector<NodeTime>& times = session.executor()->times();
        std::vector<std::pair<double, std::int64_t>> changes;
        for (std::size_t i = 0; i < plan.nodes.size(); ++i)
          for (const BufferUse& use : plan.uses_of(plan.nodes[i])) {
            const ValueInfo& value = plan.value_of(use.buffer);
            if (value.storage != StorageClass::gathered || use.access != Access::write) continue;
            if (plan.nodes[i].kind == NodeKind::release)
              changes.emplace_back(times[i].end, -value.bytes);
            else
              changes.emplace_back(times[i].start, value.bytes);
          }
        std::sort(changes.begin(), changes.end());
        std::int64_t here = 0, most = 0;
        for (const auto& [time, bytes] : changes) most = std::max(most, here += bytes);
        EXPECT_EQ(here, 0);
        EXPECT_GT(most, unit / 2);
        const std::int64_t parts = session.plan().memory().weights;
        EXPECT_LE(parts, all / 4 + all / 50) << "a quarter of the model, and what rows round up";
        EXPECT_LE(parts + most, all / 4 + (weave ? 3 : 2) * unit + all / 50)
            << "weave " << weave << " by piece " << by_piece;
        const DividedMemory planned = divided_memory(plan, session.plan().memory());
        EXPECT_EQ(planned.weights, parts);
        EXPECT_LE(most, planned.gathered);
        EXPECT_GE(planned.units, 1);
      });
    }
}

}  // namespace
}  // namespace weft
