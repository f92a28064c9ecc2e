#include "weft/train/token_check.h"

#include <limits>

#include <gtest/gtest.h>

#include "weft/base/error.h"

namespace weft {
namespace {

constexpr std::int32_t lowest = std::numeric_limits<std::int32_t>::min(),
                       highest = std::numeric_limits<std::int32_t>::max();

std::string refusal(const MicroBatch& batch, std::int64_t vocabulary) {
  std::vector<std::int32_t> tokens(batch.tokens.size()), labels(batch.labels.size());
  try {
    copy_checked(batch, vocabulary, tokens, labels);
    EXPECT_EQ(tokens, batch.tokens);
    EXPECT_EQ(labels, batch.labels);
  } catch (const UserError& e) {
    const std::string text = e.what();
    return text.substr(0, text.find(';'));
  }
  return "";
}

TEST(TokenCheck, NamesWhatIsOutside) {
  MicroBatch batch;
  batch.tokens = {0, 7, 99, 5, 1, 2, 3, 4, 98};
  batch.labels = {-1, 99, 0, -100, 8, lowest, 7, lowest + 100, 3};
  EXPECT_EQ(refusal(batch, 100), "");
  EXPECT_EQ(refusal(batch, std::int64_t{1} << 40), "");
  EXPECT_EQ(refusal(batch, 99), "token 99 is outside the vocabulary of 99");
  for (std::int32_t bad : {-1, 100, lowest, highest}) {
    MicroBatch other = batch;
    other.tokens[6] = bad;
    EXPECT_EQ(refusal(other, 100), "token " + std::to_string(bad) + " is outside the vocabulary of 100");
  }
  for (std::int32_t bad : {100, 101, highest}) {
    MicroBatch other = batch;
    other.labels[2] = bad;
    EXPECT_EQ(refusal(other, 100), "label " + std::to_string(bad) + " is outside the vocabulary of 100");
  }
  EXPECT_EQ(refusal({}, 100), "");
}

TEST(TokenCheck, CountsLabels) {
  MicroBatch batch;
  batch.batch = 20;
  batch.length = 50;
  batch.tokens.assign(1000, 7);
  batch.labels.assign(1000, 3);
  for (std::size_t i : {0, 17, 999}) batch.labels[i] = -1;
  batch.labels[5] = lowest;
  batch.labels[6] = 0;
  std::vector<std::int32_t> tokens(1000), labels(1000);
  EXPECT_EQ(copy_checked(batch, 100, tokens, labels), 996);
  EXPECT_EQ(counted_labels_before(batch, 0), 0);
  EXPECT_EQ(counted_labels_before(batch, 1), 19);
  EXPECT_EQ(counted_labels_before(batch, 7) - counted_labels_before(batch, 6), 20);
  EXPECT_EQ(counted_labels_before(batch, 50) - counted_labels_before(batch, 49), 19);
  EXPECT_EQ(counted_labels_before(batch, 50), 996);
  EXPECT_EQ(counted_labels_before(batch, 53), 996);
  // Documents of ten tokens.
  for (std::int32_t t = 0; t < 1000; ++t) batch.boundaries.push_back(t - t % 10);
  EXPECT_EQ(counted_labels_before(batch, 1), 99);
  EXPECT_EQ(counted_labels_before(batch, 10), 996);
}

}  // namespace
}  // namespace weft
