// What a session asks of a device: its operations, its dtypes, and whether it queues its work.
#include "weft/device/cpu/device.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/execute/ranks.h"
#include "weft/base/error.h"
#include "weft/base/text.h"
#include "weft/device/missing_operations.h"
#include "weft/execute/stream_executor.h"
#include "weft/train/digest.h"
#include "weft/train/session.h"

namespace weft {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

SessionOptions small_model() {
  SessionOptions o;
  o.config.pattern = "*E*-";
  o.config.hidden = 32;
  o.config.vocabulary = 50;
  o.config.attention.heads = 2;
  o.config.attention.kv_heads = 1;
  o.config.attention.head_dim = 16;
  o.config.mlp.ffn = 48;
  o.config.experts.experts = 4;
  o.config.experts.ffn = 16;
  o.config.experts.router.k = 2;
  o.batch = 2;
  o.length = 12;
  return o;
}

class Lacking : public CpuDevice {
 public:
  Lacking() : table_(CpuDevice::operations()) { table_.grouped_matmul = nullptr; }
  std::string name() const override { return "abacus"; }
  const Operations& operations() const override { return table_; }
  bool computes_in(DType dtype) const override { return dtype != DType::f64; }

 private:
  Operations table_;
};

std::string refusal(Device& device, const SessionOptions& options) {
  try {
    Session session(device, options);
  } catch (const UserError& error) {
    return error.what();
  }
  return "";
}

TEST(Device, APlanThatNeedsWhatADeviceLacksIsRefused) {
  Lacking device;
  EXPECT_THAT(refusal(device, small_model()),
              HasSubstr("abacus lacks operations that this model needs: grouped_matmul"));
  SessionOptions dense = small_model();
  dense.config.pattern = "*-";
  EXPECT_EQ(refusal(device, dense), "");
  dense.precision.compute = DType::f64;
  EXPECT_THAT(refusal(device, dense), HasSubstr("abacus does not compute in f64: drop --fp64"));
}

class Small : public CpuDevice {
 public:
  explicit Small(std::size_t free) : free_(free) {}
  std::string name() const override { return "small"; }
  std::size_t free_bytes() const override { return free_; }

 private:
  std::size_t free_;
};

TEST(Device, APlanThatDoesNotFitIsRefusedBeforeItIsAllocated) {
  SessionOptions o = small_model();
  o.precision.compute = DType::bf16;
  o.batch = 16;
  CpuDevice cpu;
  const MemoryPlan memory = Session(cpu, o).plan().memory();
  const auto total = static_cast<std::size_t>(memory.total());
  Small enough(total), little(total - 1), tiny(total / 8);
  EXPECT_EQ(refusal(enough, o), "");
  const std::string message = refusal(little, o);
  EXPECT_THAT(message,
              HasSubstr("a step needs " + human_bytes(static_cast<double>(total)) + " of memory, and small has"));
  EXPECT_THAT(message, HasSubstr("activations " + human_bytes(static_cast<double>(memory.activations))));
  EXPECT_THAT(message, HasSubstr("\n  --micro-batch-size 8: "));
  EXPECT_THAT(message, HasSubstr("\n  --grad-reduce-in-bf16: "));
  EXPECT_THAT(message, HasSubstr("\n  --seq-length 6: "));
  EXPECT_THAT(message, HasSubstr(", which fits"));
  EXPECT_THAT(refusal(tiny, o), Not(HasSubstr("which fits")));
}

TEST(Device, RanksOfOneCpuShareItsMemory) {
  RankCase c = small_case("[*-]");
  c.ranks = 3;
  const auto run = [&](std::size_t free) {
    run_ranks(c, [&](const RankCase& own, World* world) {
      SessionOptions o = options_of(own, world);
      o.ranks.on_device = c.ranks;
      Small device(free);
      const Session session(device, o);
      return RankRun{};
    });
  };
  CpuDevice cpu;
  const RankCase one = small_case("[*-]");
  const MemoryPlan plan = Session(cpu, options_of(one, nullptr)).plan().memory();
  const auto kept = static_cast<std::size_t>(plan.weights + plan.gradients + plan.states);
  const std::size_t needed = static_cast<std::size_t>(plan.total()) + 2 * kept;
  EXPECT_NO_THROW(run(needed + 4096));  // a plan of several ranks reduces, too
  try {
    run(needed - kept);
    FAIL() << "nothing was thrown";
  } catch (const UserError& error) {
    EXPECT_THAT(error.what(), HasSubstr(" of memory per rank, and small has "));
    EXPECT_THAT(error.what(), HasSubstr(" free beside its other ranks: weights "));
  }
}

// As of processes on several machines, of which one has more.
TEST(Device, RanksMayShareTheirDevicesWithDifferentNumbers) {
  RankCase c = small_case("[*-]");
  c.ranks = 3;
  c.timeout = 10;
  run_ranks(c, [&](const RankCase& own, World* world) {
    SessionOptions o = options_of(own, world);
    o.ranks.on_device = world->rank().value == 2 ? 1 : 2;
    CpuDevice device;
    const Session session(device, o);
    return RankRun{};
  });
}

TEST(Device, WhatSavesNextToNothingIsNoAdviceUnlessItFits) {
  SessionOptions o = small_model();  // nearly all of it weights, gradients and states, as large in bf16
  o.config.pattern = "-";
  o.config.hidden = 64;
  o.config.mlp.ffn = 4096;
  o.batch = 2;
  o.length = 1;
  CpuDevice cpu;
  const auto total = static_cast<std::size_t>(Session(cpu, o).plan().memory().total());
  Small half(total / 2), little(total - 1);
  EXPECT_THAT(refusal(half, o), ::testing::EndsWith(". A smaller model would need less"));
  EXPECT_THAT(refusal(little, o), HasSubstr("\n  --micro-batch-size 1: "));
  EXPECT_THAT(refusal(little, o), HasSubstr(", which fits"));
}

// Operations need room to work in, and libraries take some.
class Roomy : public Small {
 public:
  using Small::Small;
  WorkingMemory working_memory(const std::function<void(const Operations&, Stream&)>& queue) override {
    UsedOperations used;
    queue(UsedOperations::table(), used);
    const std::vector<std::string> names = used.names();
    const bool multiplies = std::find(names.begin(), names.end(), "matmul") != names.end();
    return {std::size_t{1} << 20, multiplies ? std::size_t{2} << 20 : 0};
  }
  std::size_t library_bytes() const override { return std::size_t{4} << 20; }
};

TEST(Device, WhatOperationsAndLibrariesTakeIsCounted) {
  SessionOptions o = small_model();
  CpuDevice cpu;
  const auto plan = static_cast<std::size_t>(Session(cpu, o).plan().memory().total());
  Roomy enough(plan + (7 << 20)), little(plan + (7 << 20) - 1);
  EXPECT_EQ(refusal(enough, o), "");
  EXPECT_THAT(refusal(little, o), HasSubstr(", what operations and libraries work in 7.00 MiB."));
  o.validates = true;
  EXPECT_THAT(refusal(enough, o), HasSubstr(", validation "));
  o.validates = false;
  o.samples = true;  // all logits of a sequence
  EXPECT_THAT(refusal(enough, o), HasSubstr(", validation "));
}

// A CPU that claims to queue its work: one thread feeds all lanes, in the order of the plan.
class Queueing : public CpuDevice {
 public:
  bool asynchronous() const override { return true; }
};

std::string train(Device& device, bool parallel) {
  SessionOptions o = small_model();
  o.ranks.parallel = parallel;
  Session session(device, o);
  session.initialise_parameters(1);
  if (parallel) session.executor()->keep_times(true);
  for (int step = 0; step < 3; ++step) {
    MicroBatch batch;
    batch.batch = 2;
    batch.length = 12;
    for (int i = 0; i < 24; ++i) {
      batch.tokens.push_back((i * i + step) % 50);
      batch.labels.push_back((i * 7 + step) % 50);
    }
    session.step(std::span(&batch, 1), 1e-2, 0.1);
  }
  if (parallel) {
    EXPECT_EQ(session.executor()->times().size(), session.plan().plan().nodes.size());
  }
  return weight_digest(session);
}

TEST(Device, QueuedStepsGiveTheSameBits) {
  CpuDevice cpu;
  Queueing queueing;
  const std::string serial = train(cpu, false);
  EXPECT_EQ(train(queueing, true), serial);
  EXPECT_EQ(train(queueing, false), serial);
}

}  // namespace
}  // namespace weft
