// Devices that only queue their work, without a GPU: streams are threads that run the CPU's operations in order. Lanes,
// events and collectives must order all of it, for one rank and for several, so that every bit is that of the plain run on
// the CPU.
#include <atomic>
#include <cstdlib>
#include <cstring>

#include <gtest/gtest.h>

#include "tests/execute/bitwise_cases.h"
#include "tests/execute/queued_cpu_device.h"
#include "weft/base/error.h"
#include "weft/execute/stream_executor.h"

namespace weft {
namespace {

RankRun on_queued_device(const RankCase& c, World* world) {
  QueuedCpuDevice device;
  return run_rank(c, world, device);
}

class Queued : public testing::TestWithParam<int> {};

TEST_P(Queued, every_order_gives_the_bits_of_the_plain_run) {
  std::vector<NamedCase> cases = bitwise_cases(GetParam());
  for (std::size_t i : {cases.size() / 2, cases.size() - 1}) {  // softmax in f32 and sigmoid in bf16, different layouts
    NamedCase& c = cases[i];
    c.run.steps = GetParam() == 1 ? 3 : 2;  // of one rank: queued, recorded, launched again
    const std::vector<std::string> plain = lines_of(c.name, run_ranks(c.run));
    for (const auto& [weave, delay, overlap, parallel, graph] : {std::tuple{false, false, false, false, true},
                                                                 {false, false, false, true, true},
                                                                 {true, true, false, true, true},
                                                                 {true, false, true, true, true},
                                                                 {true, false, true, true, false}}) {
      if (!graph && GetParam() > 1) continue;  // there never is one
      NamedCase other = c;
      other.run.weave = weave;
      other.run.delay = delay;
      other.run.overlap_updates = overlap;
      other.run.parallel = parallel;
      other.run.graph = graph;
      EXPECT_EQ(lines_of(c.name, run_ranks(other.run, on_queued_device)), plain)
          << c.name << ": weave " << weave << " delay " << delay << " overlap " << overlap << " parallel " << parallel
          << " graph " << graph;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(OnRanks, Queued, testing::Values(1, 2, 4), testing::PrintToStringParamName());

// A rank that fails on the host ends the others, which wait for it there.
TEST(QueuedFaults, an_error_on_one_rank_ends_all_with_its_message) {
  RankCase c = bitwise_cases(2).front().run;
  c.parallel = true;
  c.fault = parse_fault("error@9:1");
  try {
    run_ranks(c, on_queued_device);
    FAIL() << "nothing was thrown";
  } catch (const std::exception& e) {
    EXPECT_NE(std::string(e.what()).find("rank 1, node 9"), std::string::npos) << e.what();
  }
}

// Copies to the device take their time, and how many are under way is known.
class LateDevice : public QueuedCpuDevice {
 public:
  void copy_in(Stream& stream, void* device, const void* host, std::size_t bytes) override {
    ++under_way_;
    static_cast<QueuedStream&>(stream).push([=, this] {
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
      std::memcpy(device, host, bytes);
      --under_way_;
    });
  }
  bool idle() const { return under_way_ == 0; }

 private:
  std::atomic<int> under_way_ = 0;
};

std::vector<MicroBatch> batches_of(const RankCase& c, int step) {
  std::vector<MicroBatch> batches;
  for (int m = 0; m < c.micro_batches; ++m) batches.push_back(batch_of(c, step, m));
  return batches;
}

// Inputs lie in one block of the host's memory, which the next step writes over: when a step ends, however it ends, it has
// been read. The first node fails here, when nothing but the copy of the inputs is queued.
TEST(QueuedInputs, have_been_read_when_a_step_fails) {
  for (const bool parallel : {false, true})
    for (int failing = 0; failing < 3; ++failing) {
      RankCase c = bitwise_cases(1).front().run;
      c.parallel = parallel;
      c.graph = false;  // or steps after the first are replayed, without nodes that could fail
      c.fault = parse_fault(fmt::format("error@0:0:{}", failing + 1));
      LateDevice device;
      Session session(device, options_of(c, nullptr));
      session.initialise_parameters(5);
      for (int step = 0; step < failing; ++step) session.step(batches_of(c, step), 1e-2, 0.1);
      EXPECT_THROW(session.step(batches_of(c, failing), 1e-2, 0.1), RunError);
      EXPECT_TRUE(device.idle()) << "parallel " << parallel;
    }
}

// Every step reads the inputs that it was given, also one that is launched again; one that is refused leaves nothing behind.
TEST(QueuedInputs, of_a_refused_step_leave_no_trace) {
  for (const auto& [parallel, graph] : {std::pair{false, false}, {true, false}, {true, true}}) {
    RankCase c = bitwise_cases(1).front().run;
    c.parallel = parallel;
    c.graph = graph;
    std::vector<double> losses[2];
    for (const bool refused : {false, true}) {
      CpuDevice cpu;
      LateDevice late;
      Session session(refused ? static_cast<Device&>(late) : cpu, options_of(c, nullptr));
      session.initialise_parameters(5);
      for (int step = 0; step < 5; ++step) {
        if (refused) {
          std::vector<MicroBatch> wrong = batches_of(c, step + 100);
          wrong.back().labels.back() = static_cast<std::int32_t>(c.config.vocabulary);
          EXPECT_THROW(session.step(wrong, 1, 0.5), UserError);
        }
        losses[refused].push_back(session.step(batches_of(c, step), 1e-2, 0.1).loss);
        if (step == 3) losses[refused].push_back(session.evaluator().loss(batches_of(c, 50).front()));
      }
    }
    EXPECT_EQ(losses[1], losses[0]) << "parallel " << parallel << " graph " << graph;
  }
}

// A part of the processors for updates, whatever reads the weights between steps.
TEST(QueuedGraphs, are_launched_with_and_without_validation_in_between) {
  class Divided : public QueuedCpuDevice {
   public:
    int processors() const override { return 8; }
  } device;
  for (const bool overlap : {false, true})
    for (const bool validate : {false, true}) {
      RankCase c = bitwise_cases(1).front().run;
      c.parallel = true;
      c.overlap_updates = overlap;
      SessionOptions o = options_of(c, nullptr);
      o.ranks.executor.update_processors = 2;
      Session session(device, o);
      session.initialise_parameters(5);
      const auto& executor = dynamic_cast<StreamExecutor&>(*session.executor());
      for (int step = 0; step < 6; ++step) {
        session.step(batches_of(c, step), 1e-2, 0.1);
        EXPECT_TRUE(step > 0 || !executor.was_graph());
        if (validate) session.evaluator().loss(batches_of(c, step).front());
      }
      EXPECT_TRUE(executor.was_graph()) << "overlap " << overlap << " validate " << validate;
    }
}

}  // namespace
}  // namespace weft
