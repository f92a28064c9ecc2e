#include "weft/data/token_source.h"

#include <set>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/data/temporary_folder.h"
#include "weft/base/error.h"
#include "weft/data/byte_tokenizer.h"
#include "weft/data/indexed_dataset_writer.h"
#include "weft/data/megatron_source.h"
#include "weft/data/null_tokenizer.h"
#include "weft/data/permutation.h"
#include "weft/data/stories.h"
#include "weft/data/text_source.h"

namespace weft {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// Documents of 20 tokens that count upwards; no two share a token.
std::string write_counting(const TemporaryFolder& folder, const std::string& name, int documents, int first) {
  IndexedDatasetWriter writer(folder.file(name), 50000);
  for (int d = 0; d < documents; ++d) {
    std::vector<std::int32_t> tokens(20);
    for (int i = 0; i < 20; ++i) tokens[static_cast<std::size_t>(i)] = first + 20 * d + i;
    writer.add_document(tokens);
  }
  writer.finish();
  return folder.file(name);
}

MegatronDataOptions options_for(std::vector<std::string> path) {
  MegatronDataOptions options;
  options.data_path = std::move(path);
  options.split = "80,20,0";
  options.seq_length = 8;
  options.vocabulary_size = 50000;
  options.samples = {50, 10, 10};
  return options;
}

// What every source must do: labels are the next tokens, and a sample does not depend on the batch it is read in.
void check_contract(const TokenSource& source, std::int64_t samples) {
  const std::int64_t length = source.length();
  const MicroBatch all = source.sample_batch(0, static_cast<int>(samples));
  ASSERT_EQ(all.batch, samples);
  ASSERT_EQ(all.length, length);
  ASSERT_EQ(all.tokens.size(), static_cast<std::size_t>(samples * length));
  ASSERT_EQ(all.labels.size(), all.tokens.size());
  for (std::int64_t s = 0; s < samples; ++s) {
    const auto row = static_cast<std::size_t>(s * length);
    for (std::size_t i = 0; i + 1 < static_cast<std::size_t>(length); ++i) {
      ASSERT_EQ(all.labels[row + i], all.tokens[row + i + 1]) << "sample " << s << " position " << i;
    }
    const MicroBatch one = source.sample_batch(s, 1);
    ASSERT_TRUE(std::equal(one.tokens.begin(), one.tokens.end(), all.tokens.begin() + s * length)) << "sample " << s;
    ASSERT_TRUE(std::equal(one.labels.begin(), one.labels.end(), all.labels.begin() + s * length)) << "sample " << s;
  }
}

TEST(MegatronSource, TrainAndValidationShareNoDocument) {
  const TemporaryFolder folder;
  const DataSplits splits = open_megatron_data(options_for({write_counting(folder, "a", 20, 0)}));
  ASSERT_TRUE(splits.train && splits.valid);
  EXPECT_FALSE(splits.test) << "its share is zero";
  check_contract(*splits.train, 50);
  check_contract(*splits.valid, 10);
  for (std::int32_t token : splits.train->sample_batch(0, 50).labels) EXPECT_LT(token, 16 * 20);
  for (std::int32_t token : splits.valid->sample_batch(0, 10).tokens) EXPECT_GE(token, 16 * 20);
}

TEST(MegatronSource, EpochReadsEveryTokenOnce) {
  const TemporaryFolder folder;
  auto options = options_for({write_counting(folder, "a", 20, 0)});
  options.split = "1";
  options.samples = {49, 0, 0};  // (400 - 1) / 8
  const DataSplits splits = open_megatron_data(options);
  ASSERT_EQ(splits.train->samples(), 49);
  const auto labels = splits.train->sample_batch(0, 49).labels;
  EXPECT_EQ(std::set<std::int32_t>(labels.begin(), labels.end()).size(), labels.size());
}

TEST(MegatronSource, IdentityTellsOrdersApart) {
  const TemporaryFolder folder;
  const std::string prefix = write_counting(folder, "a", 20, 0);
  const auto identity = [&](auto change) {
    auto options = options_for({prefix});
    change(options);
    return open_megatron_data(options).train->identity();
  };
  const std::string base = identity([](auto&) {});
  EXPECT_THAT(base, HasSubstr("a (20 sequences, 400 uint16 tokens, checksum "));
  EXPECT_THAT(base, HasSubstr("), documents 0-16, seq_length 8, seed 1234"));
  EXPECT_EQ(base, identity([](auto& o) { o.samples[0] = 51; })) << "a slightly longer run has the same order";
  EXPECT_NE(base, identity([](auto& o) { o.samples[0] = 500; }));
  EXPECT_NE(base, identity([](auto& o) { o.seed = 1; }));
  EXPECT_NE(base, identity([](auto& o) { o.seq_length = 9; }));
}

TEST(MegatronSource, BlendsByWeight) {
  const TemporaryFolder folder;
  const std::string a = write_counting(folder, "a", 20, 0), b = write_counting(folder, "b", 20, 10000);
  const DataSplits splits = open_megatron_data(options_for({"3", a, "1", b}));
  check_contract(*splits.train, 50);
  int from_b = 0;
  for (int s = 0; s < 48; ++s) from_b += splits.train->sample_batch(s, 1).tokens[0] >= 10000;
  EXPECT_EQ(from_b, 12);
  EXPECT_EQ(splits.train->samples(), 38 + 13) << "each share is rounded up";
}

TEST(MegatronSource, BlendWithoutWeightsReadsOneEpoch) {
  const TemporaryFolder folder;
  const std::string a = write_counting(folder, "a", 30, 0), b = write_counting(folder, "b", 10, 10000);
  auto options = options_for({a, b});
  options.split = "1";
  options.samples = {90, 0, 0};
  const DataSplits splits = open_megatron_data(options);
  const auto labels = splits.train->sample_batch(0, 90).labels;
  EXPECT_EQ(std::set<std::int32_t>(labels.begin(), labels.end()).size(), labels.size());
  options.samples = {1000, 0, 0};
  EXPECT_THAT(message_of<UserError>([&] { open_megatron_data(options); }),
              HasSubstr("2 data sets without weights, which have 98 samples in one epoch, but the run needs 1000"));
}

TEST(MegatronSource, SplitsMayHaveFilesOfTheirOwn) {
  const TemporaryFolder folder;
  auto options = options_for({});
  options.split_paths[0] = {write_counting(folder, "a", 20, 0)};
  options.split_paths[1] = {"1.0", write_counting(folder, "b", 5, 10000)};
  const DataSplits splits = open_megatron_data(options);
  ASSERT_TRUE(splits.train && splits.valid && !splits.test);
  EXPECT_THAT(splits.train->identity(), HasSubstr("documents 0-20"));
  EXPECT_THAT(splits.valid->identity(), HasSubstr("documents 0-5"));
  options.data_path = {folder.file("a")};
  EXPECT_THAT(message_of<UserError>([&] { open_megatron_data(options); }),
              HasSubstr("--data-path cannot be combined with --train-data-path"));
}

TEST(MegatronSource, DataPathsAreParsed) {
  EXPECT_TRUE(parse_data_path({"p"}).weights.empty());
  EXPECT_THAT(parse_data_path({"p", "q"}).prefixes, ElementsAre("p", "q"));
  EXPECT_THAT(parse_data_path({"0.25", "p", "3", "q"}).weights, ElementsAre(0.25, 3.0));
  EXPECT_THAT(parse_data_path({"0.25", "p", "3", "q"}).prefixes, ElementsAre("p", "q"));
  EXPECT_THAT(message_of<UserError>([] { parse_data_path({}); }), HasSubstr("--data-path is empty"));
  EXPECT_THAT(message_of<UserError>([] { parse_data_path({"0", "p"}); }), HasSubstr("weight 0 of p must be greater"));
  EXPECT_THAT(message_of<UserError>([] {
                parse_data_path({"0.3", "p", "q"});
              }),
              HasSubstr("--data-path 0.3 p q: give either only prefixes, or a weight before each prefix"));
  EXPECT_THAT(message_of<UserError>([] { parse_data_path({"0.3", "p", "q", "0.7"}); }), HasSubstr("give either only"));
}

TEST(MegatronSource, ErrorsNameTheSplit) {
  const TemporaryFolder folder;
  auto options = options_for({write_counting(folder, "a", 3, 0)});
  options.split = "99,1,0";
  EXPECT_THAT(message_of<UserError>([&] { open_megatron_data(options); }),
              HasSubstr("a (--split 99,1,0) has 0 documents with 0 tokens"));
  options.samples[1] = 0;  // no evaluation: the empty part is not needed
  const DataSplits splits = open_megatron_data(options);
  EXPECT_FALSE(splits.valid);
  const std::int64_t end = splits.train->samples();
  splits.train->sample_batch(end - 1, 1);
  EXPECT_THAT(message_of<UserError>([&] { splits.train->sample_batch(end - 1, 2); }),
              HasSubstr(fmt::format("the data ends before sample {}, but the run needs sample {}", end, end)));
}

TEST(MockSource, IsLearnable) {
  MockDataOptions options;
  options.seq_length = 64;
  options.vocabulary_size = 257;
  options.eod = 256;
  options.samples = {1000, 10, 10};
  const DataSplits splits = open_mock_data(options);
  ASSERT_TRUE(splits.train && splits.valid && splits.test);
  check_contract(*splits.train, 100);
  const MicroBatch batch = splits.train->sample_batch(0, 100);
  int next = 0;
  for (std::size_t i = 0; i < batch.tokens.size(); ++i) next += batch.labels[i] == (batch.tokens[i] + 1) % 257;
  EXPECT_GT(next, static_cast<int>(batch.tokens.size()) * 98 / 100);
}

TEST(Permutation, IsOne) {
  for (std::uint64_t size : {1u, 2u, 3u, 4u, 5u, 16u, 17u, 1000u}) {
    const Permutation permutation(99, size);
    std::set<std::uint64_t> seen;
    for (std::uint64_t i = 0; i < size; ++i) {
      EXPECT_LT(permutation(i), size);
      seen.insert(permutation(i));
    }
    EXPECT_EQ(seen.size(), size);
  }
  const Permutation one(1, 1000), other(2, 1000);
  int fixed = 0, same = 0;
  for (std::uint64_t i = 0; i < 1000; ++i) {
    fixed += one(i) == i;
    same += one(i) == other(i);
  }
  EXPECT_LT(fixed, 10);  // one is expected
  EXPECT_LT(same, 10);
}

TEST(TextSource, EpochsCoverTheTextInNewOrders) {
  std::string text;
  for (int i = 0; i < 100; ++i) text += fmt::format("line {:03}\n", i);  // 900 bytes
  const DataSplits splits =
      open_text_data(text, ByteTokenizer(), {.seq_length = 9, .seed = 7, .held_out = 0.1}, "lines");
  ASSERT_TRUE(splits.train && splits.valid && !splits.test);
  check_contract(*splits.train, 200);
  check_contract(*splits.valid, 30);
  const std::int64_t windows = 811 / 9 - 1;  // held out: the lines after byte 819
  const auto epoch = [&](int number) {
    std::set<std::size_t> begins;  // no two windows of this text are alike
    for (std::int64_t s = 0; s < windows; ++s)
      begins.insert(text.find(ByteTokenizer().decode(splits.train->sample_batch(number * windows + s, 1).tokens)));
    return begins;
  };
  const auto first = epoch(0), second = epoch(1);
  for (const auto& begins : {first, second}) {
    EXPECT_EQ(begins.size(), static_cast<std::size_t>(windows)) << "no window twice";
    EXPECT_EQ(*begins.rbegin() - *begins.begin(), static_cast<std::size_t>(9 * (windows - 1))) << "and none left out";
  }
  EXPECT_NE(first, second) << "windows begin elsewhere";
  EXPECT_NE(splits.train->sample_batch(0, 3).tokens, splits.train->sample_batch(windows, 3).tokens);
}

TEST(TextSource, ValidationIsTheEndOfTheText) {
  std::string text;
  for (int i = 0; i < 100; ++i) text += fmt::format("line {:03}\n", i);
  const DataSplits splits = open_text_data(text, ByteTokenizer(), {.seq_length = 9, .held_out = 0.1}, "lines");
  const std::size_t cut = held_out_begin(text, 0.1);
  EXPECT_EQ(text.substr(cut, 8), "line 091") << "begins with a line";
  EXPECT_EQ(ByteTokenizer().decode(splits.valid->sample_batch(0, 1).tokens), text.substr(cut, 9));
  const std::int64_t windows = 8;  // 9 lines and one more token
  EXPECT_EQ(splits.valid->sample_batch(0, 1).tokens, splits.valid->sample_batch(windows, 1).tokens);
  for (int s = 0; s < 100; ++s) {
    const std::string seen = ByteTokenizer().decode(splits.train->sample_batch(s, 1).tokens);
    EXPECT_EQ(seen.find(" 09"), std::string::npos) << "a held-out line is trained on: " << seen;
  }
}

TEST(TextSource, OrderIsFixed) {
  const std::string text = "the quick brown fox jumps over the lazy dog";
  const DataSplits splits = open_text_data(text, ByteTokenizer(), {.seq_length = 5, .held_out = 0}, "fox");
  EXPECT_FALSE(splits.valid);
  std::string seen;
  for (int s = 0; s < 4; ++s) seen += ByteTokenizer().decode(splits.train->sample_batch(s, 1).tokens) + "|";
  EXPECT_EQ(seen, " fox |the q|jumps| the |");
}

TEST(TextSource, ExplainsShortTexts) {
  const std::string ids = "1 2 3 4 5\n6 7 8 9 10 11";
  const DataSplits splits = open_text_data(ids, NullTokenizer(20), {.seq_length = 10, .held_out = 0}, "ids");
  EXPECT_THAT(splits.train->sample_batch(0, 1).labels, ElementsAre(2, 3, 4, 5, 6, 7, 8, 9, 10, 11));
  EXPECT_THAT(
      message_of<UserError>([&] { open_text_data(ids, NullTokenizer(20), {.seq_length = 11, .held_out = 0}, "ids"); }),
      HasSubstr("ids (training part) has 11 tokens, too few for one sample of 11 + 1"));
  EXPECT_THAT(message_of<UserError>([&] { held_out_begin("abc", 1.0); }), HasSubstr("the held-out share"));
  EXPECT_THAT(message_of<UserError>([&] { open_text_data("abcdef", ByteTokenizer(), {.seq_length = 0}, "abc"); }),
              HasSubstr("--seq-length 0"));
}

TEST(TextSource, Stories) {
  const DataSplits splits = open_text_data(write_stories(1, 20000), ByteTokenizer(), {.seq_length = 128}, "stories");
  check_contract(*splits.train, 20);
  check_contract(*splits.valid, 5);
  EXPECT_THAT(splits.train->identity(), HasSubstr("stories (training part)"));
}

}  // namespace
}  // namespace weft
