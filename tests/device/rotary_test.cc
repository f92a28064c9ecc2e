#include <cmath>

#include "tests/device/everywhere.h"

namespace weft {
namespace {

struct Angles {
  HostTensor cosine, sine;
};
Angles angles(DType dtype, std::int64_t positions, std::int64_t width) {
  Angles table{HostTensor(dtype, Shape{positions, width / 2}), HostTensor(dtype, Shape{positions, width / 2})};
  for (std::int64_t p = 0; p < positions; ++p)
    for (std::int64_t i = 0; i < width / 2; ++i) {
      const double angle =
          static_cast<double>(p) * std::pow(10000, -2.0 * static_cast<double>(i) / static_cast<double>(width));
      table.cosine.set(p, i, std::cos(angle));
      table.sine.set(p, i, std::sin(angle));
    }
  return table;
}

TEST(Rotary, TurnsPairsByTheAnglesOfTheirPosition) {
  constexpr std::int64_t heads = 3, head_dim = 70, length = 11;
  for (DType dtype : storages)
    for (RotaryStyle style : {RotaryStyle::half_split, RotaryStyle::interleaved})
      for (const auto& [tokens, width] : {std::pair{1, 2}, std::pair{1, 70}, std::pair{180, 34}})
        for (bool given : {false, true}) {
          const HostTensor x = HostTensor::normal(dtype, Shape{tokens, heads * head_dim}, "x", 1, 300);
          const Angles table = angles(accumulator_of(dtype), 32, width);
          HostTensor positions(DType::i32, Shape{tokens});
          for (std::int64_t t = 0; t < tokens; ++t) positions.set(t, static_cast<double>((7 * t + 3) % 32));
          for (bool inverse : {false, true}) {
            std::vector<double> want = x.values(), magnitudes(want.size(), 0);
            for (std::int64_t t = 0; t < tokens; ++t)
              for (std::int64_t head = 0; head < heads; ++head)
                for (std::int64_t i = 0; i < width / 2; ++i) {
                  const std::int64_t p = given ? static_cast<std::int64_t>(positions.at(t)) : t % length;
                  const double c = table.cosine.at(p, i), s = table.sine.at(p, i) * (inverse ? -1 : 1);
                  const std::int64_t first = (t * heads + head) * head_dim;
                  const std::int64_t a = first + (style == RotaryStyle::half_split ? i : 2 * i);
                  const std::int64_t b = style == RotaryStyle::half_split ? a + width / 2 : a + 1;
                  const auto at = [&](std::int64_t index) -> double& { return want[static_cast<std::size_t>(index)]; };
                  const double xa = at(a), xb = at(b);
                  at(a) = xa * c - xb * s;
                  at(b) = xb * c + xa * s;
                  magnitudes[static_cast<std::size_t>(a)] = magnitudes[static_cast<std::size_t>(b)] =
                      std::abs(xa) + std::abs(xb);
                }
            everywhere(
                [&](TestDevice& device) {
                  Rotary op{.x = x, .cosine = table.cosine, .sine = table.sine};
                  if (given) op.positions = positions;
                  op.heads = heads, op.head_dim = head_dim, op.width = width, op.length = length;
                  op.style = style, op.inverse = inverse;
                  HostTensor y(dtype, Shape{tokens, heads * head_dim}, 220), in_place = x;
                  op.y = y;
                  device.operations().rotary(device.stream(), op);
                  op.x = op.y = in_place;
                  device.operations().rotary(device.stream(), op);
                  EXPECT_EQ(y.values(), in_place.values());
                  return std::vector<HostTensor>{y, in_place};
                },
                [&](const std::vector<HostTensor>& got) {
                  expect_close(got[0], want, 2, magnitudes);
                  EXPECT_TRUE(got[1].gaps_intact());
                });
          }
        }
}

// A rotation's gradient is the rotation back: <R x, y> = <x, R' y>.
TEST(Rotary, TheInverseIsTheGradient) {
  TestDevice device;
  for (RotaryStyle style : {RotaryStyle::half_split, RotaryStyle::interleaved}) {
    const HostTensor x = HostTensor::normal(DType::f64, Shape{9, 32}, "x");
    const HostTensor dy = HostTensor::normal(DType::f64, Shape{9, 32}, "dy");
    HostTensor y = x, dx = x;
    const Angles table = angles(DType::f64, 9, 12);
    Rotary op{x, y, table.cosine, table.sine, {}, 2, 16, 12, 9, style};
    device.operations().rotary(device.stream(), op);
    op.x = dy, op.y = dx, op.inverse = true;
    device.operations().rotary(device.stream(), op);
    EXPECT_NEAR(weighted_sum(y, dy), weighted_sum(x, dx), 1e-12);
  }
}

}  // namespace
}  // namespace weft
