#include <cmath>

#include "tests/device/everywhere.h"
#include "weft/base/error.h"

namespace weft {
namespace {

struct Case {
  std::int64_t tokens, heads, still, turning;
  bool positions = false;
  RotaryStyle style = RotaryStyle::interleaved;
};
const Case cases[] = {{1, 1, 0, 2},
                      {1, 3, 5, 4, true},
                      {23, 2, 7, 6},
                      {23, 2, 7, 6, true, RotaryStyle::half_split},
                      {300, 5, 33, 34, false, RotaryStyle::half_split},
                      {300, 5, 33, 34, true}};
constexpr std::int64_t length = 11, rows_of_table = 32;

std::size_t place(std::int64_t i) { return static_cast<std::size_t>(i); }

struct Problem {
  Case c;
  HostTensor cosine, sine, positions;

  Problem(const Case& shape, DType dtype) : c(shape) {
    const DType acc = accumulator_of(dtype);
    cosine = HostTensor(acc, Shape{rows_of_table, c.turning / 2});
    sine = HostTensor(acc, Shape{rows_of_table, c.turning / 2});
    positions = HostTensor(DType::i32, Shape{c.tokens});
    for (std::int64_t p = 0; p < rows_of_table; ++p)
      for (std::int64_t i = 0; i < c.turning / 2; ++i) {
        cosine.set(p, i, 1.2 * std::cos(static_cast<double>(p * (i + 1)) * 0.3));
        sine.set(p, i, 1.2 * std::sin(static_cast<double>(p * (i + 1)) * 0.3));
      }
    for (std::int64_t t = 0; t < c.tokens; ++t) positions.set(t, static_cast<double>((7 * t + 3) % rows_of_table));
  }
  std::int64_t width() const { return c.still + c.turning; }
  template <class Op>
  void set(Op& op) const {
    op.cosine = cosine, op.sine = sine;
    if (c.positions) op.positions = positions;
    op.heads = c.heads, op.still = c.still, op.turning = c.turning, op.length = length, op.style = c.style;
  }
  // visit(pair, first, second, cosine, sine) for the pairs of token t's turning part
  template <class Visit>
  void each_pair(std::int64_t t, const Visit& visit) const {
    const std::int64_t p = c.positions ? static_cast<std::int64_t>(positions.at(t)) : t % length;
    for (std::int64_t i = 0; i < c.turning / 2; ++i) {
      const bool halves = c.style == RotaryStyle::half_split;
      visit(halves ? i : 2 * i, halves ? i + c.turning / 2 : 2 * i + 1, cosine.at(p, i), sine.at(p, i));
    }
  }
};

TEST(LatentHeads, TurnsQueriesAndGivesEveryHeadTheSharedPart) {
  for (DType dtype : storages)
    for (const Case& c : cases) {
      SCOPED_TRACE(fmt::format("{} tokens {} heads {}", name_of(dtype), c.tokens, c.heads));
      const Problem p(c, dtype);
      const std::int64_t columns = c.heads * p.width();
      const HostTensor q = HostTensor::normal(dtype, {c.tokens, columns}, "q", 1, columns + 5);
      const HostTensor own =
          c.still > 0 ? HostTensor::normal(dtype, {c.tokens, c.heads * c.still}, "own") : HostTensor();
      const HostTensor shared = HostTensor::normal(dtype, {c.tokens, c.turning}, "shared", 1, c.turning + 2);
      std::vector<double> want_q = q.values(), want_k(want_q.size()), size_q(want_q.size(), 0), size_k = size_q;
      for (std::int64_t t = 0; t < c.tokens; ++t)
        for (std::int64_t h = 0; h < c.heads; ++h) {
          const std::int64_t head = t * columns + h * p.width();
          for (std::int64_t i = 0; i < c.still; ++i) want_k[place(head + i)] = own.at(t, h * c.still + i);
          p.each_pair(t, [&](std::int64_t i, std::int64_t j, double cosine, double sine) {
            const double a = q.at(t, h * p.width() + c.still + i), b = q.at(t, h * p.width() + c.still + j);
            const double e = shared.at(t, i), f = shared.at(t, j);
            const auto put = [&](std::vector<double>& want, std::vector<double>& size, double x, double y) {
              want[place(head + c.still + i)] = x * cosine - y * sine;
              want[place(head + c.still + j)] = y * cosine + x * sine;
              size[place(head + c.still + i)] = size[place(head + c.still + j)] = 1.2 * (std::abs(x) + std::abs(y));
            };
            put(want_q, size_q, a, b);
            put(want_k, size_k, e, f);
          });
        }
      everywhere(
          [&](TestDevice& device) {
            HostTensor turned = q, k(dtype, {c.tokens, columns}, columns + 1);
            LatentHeads op{.q = turned, .own = own, .shared = shared, .k = k};
            p.set(op);
            device.operations().latent_heads(device.stream(), op);
            return std::vector<HostTensor>{turned, k};
          },
          [&](const std::vector<HostTensor>& got) {
            EXPECT_TRUE(got[0].gaps_intact() && got[1].gaps_intact());
            expect_close(got[0], want_q, 2, size_q);
            expect_close(got[1], want_k, 2, size_k);
          });
    }
}

TEST(LatentHeads, BackwardSumsTheHeads) {
  for (DType dtype : storages)
    for (const Case& c : cases) {
      SCOPED_TRACE(fmt::format("{} tokens {} heads {}", name_of(dtype), c.tokens, c.heads));
      const Problem p(c, dtype);
      const std::int64_t columns = c.heads * p.width();
      const HostTensor dk = HostTensor::normal(dtype, {c.tokens, columns}, "dk", 1, columns + 5);
      std::vector<double> want_shared(place(c.tokens * c.turning)), size(want_shared.size(), 0), want_own;
      for (std::int64_t t = 0; t < c.tokens; ++t)
        for (std::int64_t h = 0; h < c.heads; ++h) {
          for (std::int64_t i = 0; i < c.still; ++i) want_own.push_back(dk.at(t, h * p.width() + i));
          p.each_pair(t, [&](std::int64_t i, std::int64_t j, double cosine, double sine) {
            const double a = dk.at(t, h * p.width() + c.still + i), b = dk.at(t, h * p.width() + c.still + j);
            want_shared[place(t * c.turning + i)] += a * cosine + b * sine;
            want_shared[place(t * c.turning + j)] += b * cosine - a * sine;
            size[place(t * c.turning + i)] += 1.2 * (std::abs(a) + std::abs(b));
            size[place(t * c.turning + j)] += 1.2 * (std::abs(a) + std::abs(b));
          });
        }
      everywhere(
          [&](TestDevice& device) {
            HostTensor dq = HostTensor::normal(dtype, {c.tokens, columns}, "dq");
            HostTensor down = c.still > 0 ? HostTensor(dtype, {c.tokens, c.heads * c.still}) : HostTensor();
            HostTensor dshared(dtype, {c.tokens, c.turning}, c.turning + 3);
            LatentHeadsBackward op{.dq = dq, .dk = dk, .down = down, .dshared = dshared};
            p.set(op);
            device.operations().latent_heads_backward(device.stream(), op);
            return std::vector<HostTensor>{dshared, down, dq};
          },
          [&](const std::vector<HostTensor>& got) {
            EXPECT_TRUE(got[0].gaps_intact());
            expect_close(got[0], want_shared, c.heads + 2, size);
            if (c.still > 0) {
              EXPECT_EQ(got[1].values(), want_own);
            }
          });
    }
}

TEST(LatentHeads, BackwardIsTheGradient) {
  TestDevice device(2);
  for (const Case& c : cases) {
    if (c.tokens > 100) continue;
    const Problem p(c, DType::f64);
    const std::int64_t columns = c.heads * p.width();
    HostTensor q = HostTensor::normal(DType::f64, {c.tokens, columns}, "q");
    HostTensor own = c.still > 0 ? HostTensor::normal(DType::f64, {c.tokens, c.heads * c.still}, "own") : HostTensor();
    HostTensor shared = HostTensor::normal(DType::f64, {c.tokens, c.turning}, "shared");
    HostTensor dq = HostTensor::normal(DType::f64, {c.tokens, columns}, "dq");
    const HostTensor dk = HostTensor::normal(DType::f64, {c.tokens, columns}, "dk"), weights = dq;
    const auto scalar = [&] {
      HostTensor turned = q, k(DType::f64, {c.tokens, columns});
      LatentHeads op{.q = turned, .own = own, .shared = shared, .k = k};
      p.set(op);
      device.operations().latent_heads(device.stream(), op);
      return weighted_sum(turned, weights) + weighted_sum(k, dk);
    };
    HostTensor down = own, dshared = shared;
    LatentHeadsBackward op{.dq = dq, .dk = dk, .down = down, .dshared = dshared};
    p.set(op);
    device.operations().latent_heads_backward(device.stream(), op);
    check_gradient(scalar, q, dq.values());
    check_gradient(scalar, shared, dshared.values());
    if (c.still > 0) check_gradient(scalar, own, down.values());
  }
}

TEST(LatentHeads, SizesThatDoNotFitAreRefused) {
  TestDevice device;
  const Problem p({4, 2, 3, 4}, DType::f32);
  const HostTensor q(DType::f32, {4, 14}), own(DType::f32, {4, 6}), shared(DType::f32, {4, 6});
  LatentHeads op{.q = q, .own = own, .shared = shared, .k = q};
  p.set(op);
  EXPECT_THROW(device.operations().latent_heads(device.stream(), op), BugError);
}

}  // namespace
}  // namespace weft
