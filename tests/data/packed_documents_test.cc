#include "weft/data/packed_documents.h"

#include <algorithm>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace weft {
namespace {

using testing::ElementsAre;

constexpr std::int32_t end = 9;

// Two samples; the first ends within a document, the second begins with an end.
MicroBatch two_samples() {
  MicroBatch b;
  b.batch = 2;
  b.length = 5;
  b.tokens = {1, 2, end, 3, 4, end, 5, end, end, 6};
  b.labels = {2, end, 3, 4, end, 5, end, end, 6, 7};
  return b;
}

TEST(PackedDocuments, begin_after_each_end_and_with_each_sample) {
  MicroBatch b = two_samples();
  mark_documents(b, end, {.separate = true, .reset_positions = true, .skip_ends = true});
  EXPECT_THAT(b.boundaries, ElementsAre(0, 0, 0, 3, 3, 5, 6, 6, 8, 9));
  EXPECT_THAT(b.positions, ElementsAre(0, 1, 2, 0, 1, 0, 0, 1, 0, 0));
  EXPECT_THAT(b.labels, ElementsAre(2, end, -1, 4, end, -1, end, -1, -1, 7));
}

TEST(PackedDocuments, are_marked_as_each_rule_asks) {
  MicroBatch plain = two_samples(), b = two_samples();
  mark_documents(b, end, {.separate = true});
  EXPECT_EQ(b.boundaries.size(), 10);
  EXPECT_TRUE(b.positions.empty());
  EXPECT_EQ(b.labels, plain.labels);
  b = two_samples();
  mark_documents(b, end, {.reset_positions = true});
  EXPECT_EQ(b.positions.size(), 10);
  EXPECT_TRUE(b.boundaries.empty());
  b = two_samples();
  mark_documents(b, end, {.skip_ends = true});
  EXPECT_EQ(std::count(b.labels.begin(), b.labels.end(), -1), 4);
  EXPECT_EQ(b.tokens, plain.tokens);
}

class Counting final : public TokenSource {
 public:
  Counting() : TokenSource(4) {}
  std::int64_t samples() const override { return 7; }
  std::string identity() const override { return "counting"; }

 private:
  void read_sample(std::int64_t sample, std::span<std::int32_t> window) const override {
    for (std::size_t i = 0; i < window.size(); ++i) window[i] = static_cast<std::int32_t>(sample + static_cast<int>(i));
  }
};

TEST(PackedDocuments, of_a_source_are_marked_in_every_batch) {
  const auto source = with_documents(std::make_unique<Counting>(), 2, {.separate = true, .skip_ends = true});
  EXPECT_EQ(source->length(), 4);
  EXPECT_EQ(source->samples(), 7);
  EXPECT_EQ(source->identity(), "counting; documents end at token 2, are separate, whose ends predict nothing");
  const MicroBatch b = source->sample_batch(1, 2);
  EXPECT_THAT(b.tokens, ElementsAre(1, 2, 3, 4, 2, 3, 4, 5));
  EXPECT_THAT(b.labels, ElementsAre(2, -1, 4, 5, -1, 4, 5, 6));
  EXPECT_THAT(b.boundaries, ElementsAre(0, 0, 2, 2, 4, 5, 5, 5));
  EXPECT_EQ(with_documents(nullptr, 2, {.separate = true}), nullptr);
}

}  // namespace
}  // namespace weft
