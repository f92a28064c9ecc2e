// Ranks that are not alike end with one message that names what differs, before they train.
#include "weft/train/rank_agreement.h"

#include <mutex>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/execute/ranks.h"
#include "weft/data/byte_tokenizer.h"
#include "weft/data/text_source.h"
#include "weft/train/same_run.h"

namespace weft {
namespace {

// What the ranks throw; all must throw the same.
std::string message_of(int ranks, const std::function<void(World&)>& on_rank) {
  std::mutex mutex;
  std::vector<std::string> messages;
  LocalCluster(ranks).run([&](World& world) {
    std::string message = "no error";
    try {
      on_rank(world);
    } catch (const AgreedError& error) {
      message = error.what();
    }
    const std::lock_guard lock(mutex);
    messages.push_back(message);
  });
  for (const std::string& message : messages) EXPECT_EQ(message, messages.front());
  return messages.front();
}

std::vector<std::string> numbered_lines(int count) {
  std::vector<std::string> lines;
  for (int i = 0; i < count; ++i) lines.push_back(fmt::format("line {}", i));
  return lines;
}

TEST(RankAgreement, FindsTheFirstLineThatDiffers) {
  for (const int at : {0, 1, 63, 99}) {
    LocalCluster(3).run([&](World& world) {
      std::vector<std::string> lines = numbered_lines(100);
      if (world.rank().value == 2) {
        lines[static_cast<std::size_t>(at)] = "another";
        lines.back() = "the last";
      }
      const auto found = first_difference(RankExchange(&world), lines);
      ASSERT_TRUE(found.has_value());
      EXPECT_EQ(found->rank, RankId(2));
      EXPECT_EQ(found->other, RankId(0));
      EXPECT_EQ(found->on_rank, at == 99 ? "the last" : "another");
      EXPECT_EQ(found->on_other, fmt::format("line {}", at));
    });
  }
}

TEST(RankAgreement, SeesMissingLinesAndEqualOnes) {
  LocalCluster(2).run([&](World& world) {
    const RankExchange ranks(&world);
    EXPECT_FALSE(first_difference(ranks, numbered_lines(10)));
    EXPECT_FALSE(first_difference(ranks, {}));
    const auto shorter = first_difference(ranks, numbered_lines(world.rank().value == 1 ? 7 : 10));
    ASSERT_TRUE(shorter.has_value());
    EXPECT_EQ(shorter->on_rank, "");
    EXPECT_EQ(shorter->on_other, "line 7");
  });
}

TEST(RankAgreement, RanksAreComparedWithThoseThatTheyShouldBeLike) {
  LocalCluster(4).run([&](World& world) {
    const RankExchange ranks(&world);
    const std::vector<RankId> with{RankId(0), RankId(1), RankId(0), RankId(1)};
    const std::vector<std::string> lines{fmt::format("class {}", world.rank().value % 2)};
    EXPECT_FALSE(first_difference(ranks, lines, with));
    EXPECT_TRUE(first_difference(ranks, lines));
  });
}

TEST(RankAgreement, AnErrorOfOneRankIsThrownByAll) {
  const auto failing_on = [](std::initializer_list<int> bad, const std::string& message) {
    const std::vector<int> ranks(bad);
    return message_of(3, [&](World& world) {
      agree_on_errors(RankExchange(&world), [&] {
        if (std::count(ranks.begin(), ranks.end(), world.rank().value) > 0) throw UserError("{}", message);
      });
    });
  };
  EXPECT_EQ(failing_on({}, "x"), "no error");
  EXPECT_EQ(failing_on({1}, "a.idx does not exist"), "rank 1: a.idx does not exist");
  EXPECT_EQ(failing_on({1, 2}, "a.idx does not exist"), "rank 1: a.idx does not exist");
  EXPECT_EQ(failing_on({0, 1, 2}, "a.idx does not exist"), "a.idx does not exist");
  EXPECT_EQ(failing_on({0, 1, 2}, std::string(2000, 'x')), std::string(2000, 'x'));
}

TEST(SameRun, OtherModelsAreNamed) {
  EXPECT_EQ(
      message_of(3,
                 [](World& world) {
                   ModelConfig config = small_case("[*E]").config;
                   if (world.rank().value == 2) config.attention.rope.base = 500;
                   require_same_model(RankExchange(&world), config);
                 }),
      "the models differ: 'attention.rope.base 500.0' on rank 2, 'attention.rope.base 10000.0' on rank 0: give all "
      "ranks the same config.json");
}

TEST(SameRun, OtherDataIsNamed) {
  const auto message = [](std::size_t bytes) {
    return message_of(2, [&](World& world) {
      const std::string text(world.rank().value == 1 ? bytes : 1000, 'x');
      require_same_data(RankExchange(&world), open_text_data(text, ByteTokenizer(), {.seq_length = 8}, "/some/text"));
    });
  };
  EXPECT_EQ(message(1000), "no error");
  EXPECT_THAT(message(900), testing::AllOf(testing::StartsWith("the training data is text (training part), "),
                                           testing::HasSubstr(" tokens ("),
                                           testing::HasSubstr(" on rank 1 and text (training part), "),
                                           testing::EndsWith(" on rank 0: give all ranks the same files")));
}

// Tokens that only their place decides.
class Numbers final : public TokenSource {
 public:
  explicit Numbers(std::int32_t first) : TokenSource(4), first_(first) {}
  std::int64_t samples() const override { return 10; }
  std::string identity() const override { return "numbers"; }

 private:
  void read_sample(std::int64_t, std::span<std::int32_t> window) const override {
    for (std::size_t i = 0; i < window.size(); ++i) window[i] = first_ + static_cast<std::int32_t>(i);
  }
  std::int32_t first_;
};

TEST(SameRun, OtherTokensInFilesOfTheSameSizesAreSeen) {
  EXPECT_EQ(message_of(2,
                       [](World& world) {
                         DataSplits splits;
                         splits.train = std::make_unique<Numbers>(1);
                         splits.valid = std::make_unique<Numbers>(world.rank().value == 1 ? 7 : 1);
                         require_same_data(RankExchange(&world), splits);
                       }),
            "the validation data (10 samples of numbers) has other tokens on rank 1 than on rank 0: give all ranks the "
            "same files");
}

TEST(SameRun, OtherWeightsAreNamed) {
  RankCase c = small_case("[*E]");
  c.ranks = 4;
  c.expert_ranks = 2;
  for (const DType dtype : {DType::f32, DType::bf16}) {
    c.dtype = dtype;
    const auto message = [&](int bad, const std::string& parameter) {
      return message_of(c.ranks, [&](World& world) {
        CpuDevice device;
        Session session(device, options_of(c, &world));
        session.set_parameters([&](const ParameterPart& part, HostTensor& tensor) {
          initialise(part, 5, tensor);
          if (world.rank().value == bad && to_text(part.identity) == parameter)
            set_number(tensor, part.runs()[0].tensor, 0.25);
        });
        require_same_weights(session);
      });
    };
    EXPECT_EQ(message(-1, ""), "no error");
    EXPECT_EQ(message(3, "language.main.0.q"),
              "ranks 0 and 3 have loaded different weights, the first of them main.0*.qkv_weight: give all ranks the "
              "same model");
    EXPECT_EQ(message(3, "language.main.1.down.3"),
              "ranks 1 and 3 have loaded different weights, the first of them main.1E.down_weight: give all ranks the "
              "same model");
  }
}

}  // namespace
}  // namespace weft
