// Random patterns, layouts and options: every number is that of one rank in f64, and no order changes a bit.
// WEFT_LAYOUTS=N: how many of each of the eight tests (25).
#include "tests/train/random_layouts.h"

#include <cstdlib>
#include <memory>

#include <gtest/gtest.h>

#include "tests/base/dice.h"
#include "tests/data/temporary_folder.h"
#include "tests/train/parsed_options.h"
#include "weft/comm/local/cluster.h"
#include "weft/data/indexed_dataset_writer.h"
#include "weft/device/cpu/device.h"
#include "weft/train/verify.h"

namespace weft {
namespace {

constexpr int steps = 2;

std::unique_ptr<RunRecord> run(const TrainOptions& options) {
  auto record = std::make_unique<RunRecord>(steps);
  const auto on_rank = [&](World* world) {
    CpuDevice device;
    run_recorded(options, {.device = device, .pricer = {}, .world = world}, *record);
  };
  if (options.layout.ranks == 1)
    on_rank(nullptr);
  else
    LocalCluster(static_cast<int>(options.layout.ranks)).run([&](World& world) { on_rank(&world); });
  return record;
}

// "" where both agree.
std::string difference(const RunRecord& a, const RunRecord& b, double tolerance) {
  std::string all;
  for (const StepDifference& d : compare(a, b))
    if (!d.within(tolerance))
      all += fmt::format("loss {:.17g} for {:.17g}, norm off by {:.2e}, weights by {:.2e}: {}\n", d.loss, d.oracle_loss,
                         d.norm_difference, d.weight_difference, d.beyond(tolerance));
  return all;
}

// Short documents, so that several share a sample. --mock-data would do, but takes a second to make.
class RandomLayouts : public testing::TestWithParam<int> {
 protected:
  void SetUp() override {
    IndexedDatasetWriter writer(prefix_, random_layout_vocabulary + 1);
    Dice dice(1, "documents");
    for (int d = 0; d < 200; ++d) {
      std::vector<std::int32_t> tokens;
      for (int t = dice.between(2, 20); t > 0; --t)
        tokens.push_back(static_cast<std::int32_t>(dice.below(random_layout_vocabulary)));
      tokens.push_back(random_layout_vocabulary);  // the end of a document
      writer.add_document(tokens);
    }
    writer.finish();
  }
  std::string data() const { return " --data-path " + prefix_; }

 private:
  TemporaryFolder folder_;
  std::string prefix_ = folder_.file("documents");
};

TEST_P(RandomLayouts, agree_with_one_rank_and_no_order_changes_a_bit) {
  const char* wanted = std::getenv("WEFT_LAYOUTS");
  const int count = wanted ? std::atoi(wanted) : 25;
  ASSERT_GT(count, 0) << "WEFT_LAYOUTS=" << wanted;
  for (int i = 0; i < count; ++i) {
    const std::uint64_t seed = static_cast<std::uint64_t>(GetParam()) * 1000000 + static_cast<std::uint64_t>(i);
    const RandomLayout layout = random_layout(seed);
    const std::string words = layout.words + " --fp64 --threads 1";
    const std::string message = fmt::format("seed {}: weft verify --mock-data {} {}", seed, words, layout.order);
    try {
      const TrainOptions plain = ParsedOptions(words + data()).options;
      const auto here = run(plain);
      EXPECT_EQ(difference(*here, *run(oracle_of(plain)), 1e-9), "") << message;
      if (layout.order.empty()) continue;
      EXPECT_EQ(difference(*run(ParsedOptions(words + data() + " " + layout.order).options), *here, 0), "") << message;
    } catch (const std::exception& error) {
      ADD_FAILURE() << message << "\n" << error.what();
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Parts, RandomLayouts, testing::Range(0, 8));

}  // namespace
}  // namespace weft
