#include <cmath>

#include "tests/device/everywhere.h"
#include "weft/base/error.h"
#include "weft/base/random.h"
#include "weft/device/operations.h"

namespace weft {
namespace {

// Some tokens many times, some never, some negative.
HostTensor random_tokens(std::int64_t count, std::int64_t vocabulary) {
  HostTensor tokens(DType::i32, Shape{count});
  for (std::int64_t t = 0; t < count; ++t) {
    const double u = random_uniform(9, static_cast<std::uint64_t>(t));
    tokens.set(t, t % 13 == 5 ? -1.0 : std::floor(u * u * static_cast<double>(vocabulary)));
  }
  return tokens;
}

TEST(Embedding, CopiesRows) {
  for (DType dtype : storages)
    for (DType out : {dtype, accumulator_of(dtype)})
      for (std::int64_t columns : {1, 3, 17, 65, 1000}) {
        const std::int64_t count = 37, vocabulary = 50;
        const HostTensor tokens = random_tokens(count, vocabulary);
        const HostTensor weight = HostTensor::normal(dtype, Shape{vocabulary, columns}, "weight");
        std::vector<double> want;
        for (std::int64_t t = 0; t < count; ++t)
          for (std::int64_t c = 0; c < columns; ++c)
            want.push_back(tokens.at(t) < 0 ? 0 : weight.at(static_cast<std::int64_t>(tokens.at(t)), c));
        everywhere(
            [&](TestDevice& device) {
              HostTensor y(out, Shape{count, columns}, columns + 1);
              y.fill(7);
              device.operations().embedding(device.stream(), {tokens, weight, y});
              return std::vector<HostTensor>{y};
            },
            [&](const std::vector<HostTensor>& got) { EXPECT_EQ(got[0].values(), want); });
      }
}

// The same bits as a loop over tokens in their order, added up in acc and rounded once.
TEST(Embedding, GradientAddsInTheOrderOfTokens) {
  for (DType dtype : storages)
    for (DType out : {dtype, accumulator_of(dtype)})
      for (Store store : {Store::write, Store::add})
        for (const auto& [vocabulary, columns] :
             {std::pair{1, 3}, std::pair{40, 1}, std::pair{40, 65}, std::pair{40, 1000}, std::pair{700, 17}}) {
          const std::int64_t count = 90;
          const HostTensor tokens = random_tokens(count, vocabulary);
          const HostTensor dy = HostTensor::normal(dtype, Shape{count, columns}, "dy", 1, columns + 2);
          const HostTensor old = HostTensor::normal(out, Shape{vocabulary, columns}, "old");
          HostTensor want = old;
          for (std::int64_t v = 0; v < vocabulary; ++v)
            for (std::int64_t c = 0; c < columns; ++c) {
              double wide = 0;
              float narrow = 0;
              bool any = false;
              for (std::int64_t t = 0; t < count; ++t)
                if (tokens.at(t) == static_cast<double>(v)) {
                  wide += dy.at(t, c);
                  narrow += static_cast<float>(dy.at(t, c));
                  any = true;
                }
              const double sum = dtype == DType::f64 ? wide : static_cast<double>(narrow);
              if (store == Store::write)
                want.set(v, c, sum);
              else if (any)
                want.set(v, c,
                         dtype == DType::f64 ? old.at(v, c) + sum
                                             : static_cast<double>(static_cast<float>(old.at(v, c)) + narrow));
            }
          everywhere(
              [&](TestDevice& device) {
                HostTensor dweight = old;
                device.operations().embedding_gradient(device.stream(), {tokens, dy, dweight, store});
                return std::vector<HostTensor>{dweight};
              },
              [&](const std::vector<HostTensor>& got) { EXPECT_TRUE(got[0].same_bits(want)); });
        }
}

TEST(Embedding, GradientIsTheAdjoint) {
  TestDevice device;
  const HostTensor tokens = random_tokens(60, 300);
  const HostTensor weight = HostTensor::normal(DType::f64, Shape{300, 12}, "weight");
  const HostTensor dy = HostTensor::normal(DType::f64, Shape{60, 12}, "dy");
  HostTensor y = dy, dweight = weight;
  device.operations().embedding(device.stream(), {tokens, weight, y});
  device.operations().embedding_gradient(device.stream(), {tokens, dy, dweight});
  EXPECT_NEAR(weighted_sum(y, dy), weighted_sum(weight, dweight), 1e-11);
}

TEST(Embedding, RefusesATokenBeyondTheVocabulary) {
  for_each_device([](TestDevice& device) {
    const HostTensor tokens = HostTensor::integers({1, 5}), weight(DType::f32, Shape{5, 2}), y(DType::f32, Shape{2, 2});
    const auto message = [](const std::function<void()>& run) -> std::string {
      try {
        run();
      } catch (const BugError& error) {
        return error.what();
      }
      return "";
    };
    EXPECT_EQ(message([&] {
                device.operations().embedding(device.stream(), {tokens, weight, y});
              }),
              "embedding: a token beyond the vocabulary");
    EXPECT_EQ(message([&] {
                device.operations().embedding_gradient(device.stream(), {tokens, y, weight});
              }),
              "embedding_gradient: a token beyond the vocabulary");
  });
}

TEST(LocalTokens, AreThoseOfTheRanksRows) {
  const HostTensor tokens = HostTensor::integers({0, 4, 5, 9, 10, -1, 7});
  everywhere(
      [&](TestDevice& device) {
        HostTensor y(DType::i32, Shape{7}), none = y;
        device.operations().local_tokens(device.stream(), {tokens, y, 5, 5});
        device.operations().local_tokens(device.stream(), {tokens, none, 11, 0});
        return std::vector<HostTensor>{y, none};
      },
      [&](const std::vector<HostTensor>& got) {
        EXPECT_EQ(got[0].values(), (std::vector<double>{-1, -1, 0, 4, -1, -1, 2}));
        EXPECT_EQ(got[1].values(), std::vector<double>(7, -1));
      });
}

TEST(Shift, TakesLaterTokensOfTheSameSequence) {
  constexpr std::int64_t count = 300, length = 60;
  HostTensor x(DType::i32, Shape{count}), boundaries(DType::i32, Shape{count});
  for (std::int64_t t = 0; t < count; ++t) {
    x.set(t, static_cast<double>(1000 + t));
    boundaries.set(t, static_cast<double>(t - t % (t < 120 ? 7 : 90)));
  }
  for (const bool documents : {false, true})
    for (std::int64_t by : {0, 1, 3, 59, 60, 500}) {
      std::vector<double> want;
      for (std::int64_t t = 0; t < count; ++t) {
        const bool inside =
            t + by < count && (documents ? boundaries.at(t) == boundaries.at(t + by) : t / length == (t + by) / length);
        want.push_back(inside ? static_cast<double>(1000 + t + by) : -1);
      }
      everywhere(
          [&](TestDevice& device) {
            HostTensor y(DType::i32, Shape{count});
            device.operations().shift(device.stream(),
                                      {x, y, documents ? boundaries.view() : Tensor{}, by, -1, documents ? 0 : length});
            return std::vector<HostTensor>{y};
          },
          [&](const std::vector<HostTensor>& got) { EXPECT_EQ(got[0].values(), want); });
    }
}

}  // namespace
}  // namespace weft
