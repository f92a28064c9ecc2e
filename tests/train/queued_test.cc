// Devices that only queue their work, without a GPU: streams are threads that run the CPU's operations in order. Lanes, events
// and collectives must order all of it, for one rank and for several, so that every bit is that of the plain run on the CPU.
#include <gtest/gtest.h>

#include "tests/comm/queued_device.h"
#include "tests/train/bitwise_cases.h"

namespace weft {
namespace {

class QueuedCpuStream : public QueuedStream {
 public:
  explicit QueuedCpuStream(CpuDevice& cpu) : cpu_(cpu), inner_(cpu.make_stream(1)) {}
  ~QueuedCpuStream() override { synchronize(); }
  const Operations& operations() const { return cpu_.operations(); }
  Stream& inner() { return *inner_; }

 private:
  CpuDevice& cpu_;
  std::unique_ptr<Stream> inner_;
};

// The arguments are copied, and so are the lists they name: a caller's list need not live until it is used.
template <auto entry, class Arguments>
void queue_operation(Stream& stream, const Arguments& arguments) {
  auto& queued = static_cast<QueuedCpuStream&>(stream);
  const auto run = [&queued](const Arguments& own) { (queued.operations().*entry)(queued.inner(), own); };
  if constexpr (std::is_same_v<Arguments, SumOfSquares>) {
    queued.push([run, own = arguments, list = std::vector(arguments.x.begin(), arguments.x.end())]() mutable {
      own.x = list;
      run(own);
    });
  } else if constexpr (std::is_same_v<Arguments, AdamW>) {
    queued.push([run, own = arguments, list = std::vector(arguments.slabs.begin(), arguments.slabs.end())]() mutable {
      own.slabs = list;
      run(own);
    });
  } else {
    queued.push([run, own = arguments] { run(own); });
  }
}

class QueuedCpuDevice : public QueuedDevice {
 public:
  QueuedCpuDevice() : QueuedDevice("queued") {
#define WEFT_QUEUE(name, Arguments) operations_.name = &queue_operation<&Operations::name, Arguments>;
    WEFT_OPERATIONS(WEFT_QUEUE)
#undef WEFT_QUEUE
  }
  const Operations& operations() const override { return operations_; }
  std::unique_ptr<Stream> make_stream(int) override { return std::make_unique<QueuedCpuStream>(cpu_); }
  std::unique_ptr<Memory> allocate(std::size_t bytes) override { return cpu_.allocate(bytes); }

 private:
  CpuDevice cpu_;
  Operations operations_;
};

RankRun on_queued_device(const RankCase& c, World* world) {
  QueuedCpuDevice device;
  return run_rank(c, world, device);
}

class Queued : public testing::TestWithParam<int> {};

TEST_P(Queued, every_order_gives_the_bits_of_the_plain_run) {
  std::vector<NamedCase> cases = bitwise_cases(GetParam());
  for (std::size_t i : {cases.size() / 2, cases.size() - 1}) {  // softmax in f32 and sigmoid in bf16, different layouts
    NamedCase& c = cases[i];
    c.run.steps = 2;
    const std::vector<std::string> plain = lines_of(c.name, run_ranks(c.run));
    for (const auto& [weave, delay, overlap, parallel] : {std::tuple{false, false, false, false},
                                                          {false, false, false, true},
                                                          {true, true, false, true},
                                                          {true, false, true, true}}) {
      NamedCase other = c;
      other.run.weave = weave;
      other.run.delay = delay;
      other.run.overlap_updates = overlap;
      other.run.parallel = parallel;
      EXPECT_EQ(lines_of(c.name, run_ranks(other.run, on_queued_device)), plain)
          << c.name << ": weave " << weave << " delay " << delay << " overlap " << overlap << " parallel " << parallel;
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

}  // namespace
}  // namespace weft
