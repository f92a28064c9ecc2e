// Expected values were made with numpy and a separate statement of the order in Python.
#include "weft/data/megatron_order.h"

#include <numeric>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/data/temporary_folder.h"
#include "weft/base/error.h"
#include "weft/data/mock_documents.h"
#include "weft/data/numpy_random.h"

namespace weft {
namespace {

using ::testing::ElementsAre;
using ::testing::ElementsAreArray;
using ::testing::HasSubstr;

// Token = 100 * document + position.
class PlainDocuments final : public Documents {
 public:
  explicit PlainDocuments(std::vector<std::int64_t> lengths) : lengths_(std::move(lengths)) {}
  std::int64_t count() const override { return static_cast<std::int64_t>(lengths_.size()); }
  std::int64_t length(std::int64_t document) const override { return lengths_[static_cast<std::size_t>(document)]; }
  void read(std::int64_t document, std::int64_t offset, std::span<std::int32_t> out) const override {
    ASSERT_LE(offset + static_cast<std::int64_t>(out.size()), length(document));
    std::iota(out.begin(), out.end(), static_cast<std::int32_t>(100 * document + offset));
  }
  std::string identity() const override { return "plain"; }

 private:
  std::vector<std::int64_t> lengths_;
};

std::uint64_t hash(std::uint64_t h, auto value) { return (h ^ static_cast<std::uint64_t>(value)) * 0x100000001b3u; }
constexpr std::uint64_t hash_start = 0xcbf29ce484222325u;

const std::vector<std::int64_t> ten = {5, 3, 8, 1, 0, 7, 4, 6, 2, 9};

TEST(NumpyRandom, ShufflesLikeNumpy) {
  const auto shuffled = [](std::uint32_t seed) {
    std::vector<int> values(10);
    std::iota(values.begin(), values.end(), 0);
    NumpyRandomState(seed).shuffle(std::span(values));
    return values;
  };
  EXPECT_THAT(shuffled(0), ElementsAre(2, 8, 4, 9, 1, 6, 7, 3, 0, 5));
  EXPECT_THAT(shuffled(42), ElementsAre(8, 1, 5, 0, 7, 2, 9, 4, 3, 6));
  EXPECT_THAT(shuffled(1234), ElementsAre(7, 2, 9, 1, 0, 8, 4, 5, 6, 3));
  std::vector<std::int64_t> thousand(1000);
  std::iota(thousand.begin(), thousand.end(), 0);
  NumpyRandomState(2023).shuffle(std::span(thousand));
  thousand.resize(8);
  EXPECT_THAT(thousand, ElementsAre(847, 874, 471, 476, 764, 138, 49, 226));
}

TEST(NumpyRandom, SumsLikeNumpy) {
  const auto sum = [](int n) {
    std::vector<double> values;
    for (int k = 0; k < n; ++k) values.push_back(1.0 / (k * k % 97 + 1));
    return numpy_sum(values);
  };
  EXPECT_EQ(sum(5), 0x1.dbdbdbdbdbdbep+0);
  EXPECT_EQ(sum(127), 0x1.29ddbb547e59ap+3);  // one after another: ...598
  EXPECT_EQ(sum(129), 0x1.2b5e591f131a0p+3);
  EXPECT_EQ(sum(300), 0x1.4bd05adb59dd8p+4);
  EXPECT_EQ(sum(1000), 0x1.0693cb5b0a295p+6);
}

TEST(MegatronOrder, SplitsRoundHalfToEven) {
  const auto text = [](const char* shares, std::int64_t documents) {
    std::string result;
    for (const auto& range : split_documents(parse_split(shares), documents)) {
      result += range ? fmt::format("{}-{} ", range->begin, range->end) : "none ";
    }
    return result;
  };
  EXPECT_EQ(text("99,1,0", 100), "0-99 99-100 none ");
  EXPECT_EQ(text("969, 30, 1", 1000), "0-969 969-999 999-1000 ");
  EXPECT_EQ(text("969,30,1", 125), "0-121 121-125 125-125 ");
  EXPECT_EQ(text("0.5,0.3,0.2", 5), "0-2 2-4 4-5 ");  // 2.5 is rounded down
  EXPECT_EQ(text("0.5,0.3,0.2", 125), "0-62 62-100 100-125 ");
  EXPECT_EQ(text("100", 7), "0-7 none none ");
}

TEST(MegatronOrder, BadSplitsAreExplained) {
  EXPECT_THAT(message_of<UserError>([] { parse_split("9,x,1"); }), HasSubstr("--split 9,x,1: \"x\" is not a share"));
  EXPECT_THAT(message_of<UserError>([] { parse_split("9,-1,1"); }), HasSubstr("\"-1\" is not a share"));
  EXPECT_THAT(message_of<UserError>([] { parse_split("9,nan,1"); }), HasSubstr("\"nan\" is not a share"));
  EXPECT_THAT(message_of<UserError>([] { parse_split("1,2,3,4"); }), HasSubstr("has 4 shares"));
  EXPECT_THAT(message_of<UserError>([] { parse_split("0,0,0"); }), HasSubstr("all shares are zero"));
}

struct Expected {
  std::int64_t epochs;
  bool separate;
  std::vector<int> documents;
  std::vector<std::pair<int, int>> starts;  // including the end of the last sample
  std::vector<std::uint32_t> shuffle;
};

void check(DocumentRange range, std::int64_t seq_length, std::optional<std::int64_t> samples, std::uint32_t seed,
           const Expected& expected) {
  const PlainDocuments documents(ten);
  const MegatronOrder order(documents, range, {.seq_length = seq_length, .seed = seed, .samples = samples}, "ten");
  EXPECT_EQ(order.epochs(), expected.epochs);
  EXPECT_EQ(order.separate_final_epoch(), expected.separate);
  EXPECT_THAT(order.document_index(), ElementsAreArray(expected.documents));
  EXPECT_THAT(order.shuffle_index(), ElementsAreArray(expected.shuffle));
  ASSERT_EQ(order.samples() + 1, static_cast<std::int64_t>(expected.starts.size()));
  for (std::size_t k = 0; k < expected.starts.size(); ++k) {
    const auto start = order.start(static_cast<std::int64_t>(k));
    EXPECT_EQ(start.document, expected.starts[k].first) << "sample " << k;
    EXPECT_EQ(start.offset, expected.starts[k].second) << "sample " << k;
  }
}

TEST(MegatronOrder, OneEpoch) {
  check({0, 10}, 4, 11, 1234,
        {1,
         false,
         {7, 2, 9, 1, 0, 8, 4, 5, 6, 3},
         {{0, 0}, {0, 4}, {1, 2}, {1, 6}, {2, 2}, {2, 6}, {3, 1}, {4, 2}, {5, 1}, {7, 3}, {8, 0}, {9, 0}},
         {3, 10, 2, 1, 7, 5, 4, 0, 8, 6, 9}});
}

TEST(MegatronOrder, OneEpochOfAPart) {
  check({2, 9}, 3, std::nullopt, 42,
        {1,
         false,
         {2, 3, 7, 4, 6, 5, 8},
         {{0, 0}, {0, 3}, {0, 6}, {2, 0}, {2, 3}, {4, 0}, {4, 3}, {5, 2}, {5, 5}, {6, 1}},
         {3, 7, 0, 8, 5, 2, 1, 6, 4}});
}

TEST(MegatronOrder, TwoEpochsShuffledTogether) {
  check({0, 10}, 4, 20, 1234,
        {2,
         false,
         {3, 3, 2, 6, 4, 5, 4, 0, 8, 8, 7, 1, 0, 9, 7, 1, 9, 2, 6, 5},
         {{0, 0},  {2, 2},  {2, 6},  {3, 2},  {5, 2},  {5, 6},  {7, 3},  {9, 0},  {10, 2}, {11, 0}, {12, 1}, {13, 0},
          {13, 4}, {13, 8}, {14, 3}, {15, 1}, {16, 2}, {16, 6}, {17, 1}, {17, 5}, {18, 1}, {19, 1}, {19, 5}},
         {8, 17, 21, 1, 4, 20, 19, 13, 14, 9, 0, 11, 7, 3, 10, 6, 2, 5, 12, 16, 18, 15}});
}

TEST(MegatronOrder, LastEpochApart) {
  check({0, 10}, 4, 14, 7,
        {2,
         true,
         {8, 5, 0, 2, 1, 9, 7, 3, 6, 4, 1, 3, 2, 5, 9, 0, 4, 6, 7, 8},
         {{0, 0},  {1, 2},  {1, 6},  {2, 3},  {3, 2},  {3, 6},  {4, 2},  {5, 3},  {5, 7},  {6, 2},  {7, 0}, {8, 3},
          {11, 0}, {12, 3}, {12, 7}, {13, 3}, {14, 0}, {14, 4}, {14, 8}, {15, 3}, {17, 2}, {18, 2}, {19, 0}},
         {4, 2, 6, 1, 10, 7, 9, 0, 8, 5, 3, 13, 16, 11, 18, 14, 12, 21, 15, 17, 20, 19}});
}

TEST(MegatronOrder, ThousandDocumentsInFourEpochs) {
  std::vector<std::int64_t> lengths;
  for (std::int64_t i = 0; i < 1000; ++i) lengths.push_back(i * 7919 % 50 + 1);
  const PlainDocuments documents(lengths);
  const MegatronOrder order(documents, {0, 969}, {.seq_length = 16, .seed = 1234, .samples = 5000}, "thousand");
  EXPECT_EQ(order.epochs(), 4);
  EXPECT_TRUE(order.separate_final_epoch());
  EXPECT_EQ(order.samples(), 6173);
  std::uint64_t h = hash_start;
  for (std::int32_t document : order.document_index()) h = hash(h, document);
  for (std::int64_t k = 0; k <= order.samples(); ++k) {
    h = hash(h, order.start(k).document);
    h = hash(h, order.start(k).offset);
  }
  for (std::uint32_t sample : order.shuffle_index()) h = hash(h, sample);
  EXPECT_EQ(h, 0xf4d2fec892925d8au);
}

TEST(MegatronOrder, SamplesOverlapByOneToken) {
  const PlainDocuments documents(ten);
  const MegatronOrder order(documents, {0, 10}, {.seq_length = 4, .seed = 1234, .samples = 11}, "ten");
  std::vector<std::int32_t> window(5);
  order.read(documents, 3, window);  // stream sample 1: two tokens of document 7, then document 2
  EXPECT_THAT(window, ElementsAre(704, 705, 200, 201, 202));
  order.read(documents, 2, window);  // stream sample 2
  EXPECT_THAT(window, ElementsAre(202, 203, 204, 205, 206));
}

TEST(MegatronOrder, TooLittleDataIsExplained) {
  const PlainDocuments documents(ten);
  EXPECT_THAT(message_of<UserError>([&] {
                MegatronOrder(documents, {4, 5}, {.seq_length = 4, .samples = 1}, "ten");
              }),
              HasSubstr("ten has 1 documents with 0 tokens, too few for a sample"));
  EXPECT_THAT(message_of<UserError>([&] {
                MegatronOrder(documents, {0, 1}, {.seq_length = 9}, "ten");
              }),
              HasSubstr("ten has 5 tokens, too few for one sample of 9 + 1"));
}

TEST(MegatronOrder, ShortDataRepeatsToFillASample) {
  const PlainDocuments documents(ten);
  const MegatronOrder order(documents, {0, 1}, {.seq_length = 9, .samples = 1}, "ten");
  std::vector<std::int32_t> window(10);
  order.read(documents, 0, window);
  EXPECT_THAT(window, ElementsAre(0, 1, 2, 3, 4, 0, 1, 2, 3, 4));
}

TEST(Blend, FollowsTheLargestDeficit) {
  const Blend two = blend(std::vector{0.3, 0.7}, 12);
  EXPECT_THAT(two.dataset, ElementsAre(1, 0, 1, 1, 0, 1, 1, 0, 1, 1, 0, 1));
  EXPECT_THAT(two.sample, ElementsAre(0, 0, 1, 2, 1, 3, 4, 2, 5, 6, 3, 7));
  const Blend three = blend(std::vector{1.0, 2.0, 7.0}, 16);
  EXPECT_THAT(three.dataset, ElementsAre(2, 1, 2, 0, 2, 2, 1, 2, 2, 2, 0, 2, 1, 2, 2, 2));
  const Blend even = blend(std::vector{1.0, 1.0, 1.0}, 9);
  EXPECT_THAT(even.dataset, ElementsAre(0, 1, 2, 0, 1, 2, 0, 1, 2)) << "ties go to the lower index";
}

TEST(Blend, ThirteenDataSets) {
  std::vector<double> weights;
  for (int k = 0; k < 13; ++k) weights.push_back(1.0 / (k + 3));
  const Blend many = blend(normalize_weights(weights), 3000);
  std::uint64_t h = hash_start;
  for (std::int16_t dataset : many.dataset) h = hash(h, dataset);
  for (std::int64_t sample : many.sample) h = hash(h, sample);
  EXPECT_EQ(h, 0x92a3ee62df8c32bfu);
}

TEST(MockDocuments, AreMegatrons) {
  const MockDocuments documents(257, 256);
  ASSERT_EQ(documents.count(), 100000);
  std::uint64_t h = hash_start;
  for (std::int64_t d = 0; d < documents.count(); ++d) h = hash(h, documents.length(d));
  EXPECT_EQ(h, 0x7f42f778132c41eu);
  EXPECT_EQ(documents.length(7), 68);
  std::vector<std::int32_t> tokens(3);
  documents.read(7, 65, tokens);
  EXPECT_THAT(tokens, ElementsAre(66, 67, 256));
  documents.read(0, 254, tokens);
  EXPECT_THAT(tokens, ElementsAre(255, 256, 0)) << "counts modulo the vocabulary";
}

}  // namespace
}  // namespace weft
