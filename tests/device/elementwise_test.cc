#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

#include <fmt/format.h>

#include "tests/device/everywhere.h"
#include "weft/base/error.h"
#include "weft/device/operations.h"

namespace weft {
namespace {

TEST(Add, AddsAnyMixOfF32AndBf16) {
  struct Types {
    DType a, b, y;
  };
  std::vector<Types> mixes = {{DType::f64, DType::f64, DType::f64}};
  for (DType a : {DType::f32, DType::bf16})
    for (DType b : {DType::f32, DType::bf16})
      for (DType y : {DType::f32, DType::bf16}) mixes.push_back({a, b, y});
  for (const Types& types : mixes)
    for (const Shape& shape : {Shape{1}, Shape{3}, Shape{17}, Shape{65}, Shape{40000}, Shape{45, 1000}})
      for (std::int64_t gap : {0, 5}) {
        if (shape.dims() == 1 && gap > 0) continue;
        SCOPED_TRACE(fmt::format("{} {} {} {}", name_of(types.a), name_of(types.b), name_of(types.y), to_text(shape)));
        const std::int64_t stride = shape.dims() == 1 ? 0 : shape[1] + gap;
        const HostTensor a = HostTensor::normal(types.a, shape, "a", 1, stride);
        const HostTensor b = HostTensor::normal(types.b, shape, "b", 1, stride);
        std::vector<double> want;
        for (std::int64_t i = 0; i < a.elements(); ++i) want.push_back(a.at(i) + b.at(i));
        everywhere(
            [&](TestDevice& device) {
              HostTensor y(types.y, shape, stride), on_a = a, on_b = b;
              device.operations().add(device.stream(), {a, b, y});
              if (types.a == types.y) {
                device.operations().add(device.stream(), {on_a, b, on_a});
                EXPECT_TRUE(on_a.same_bits(y));
              }
              if (types.b == types.y) {
                device.operations().add(device.stream(), {a, on_b, on_b});
                EXPECT_TRUE(on_b.same_bits(y));
              }
              return std::vector<HostTensor>{y};
            },
            [&](const std::vector<HostTensor>& got) {
              std::vector<double> magnitudes;
              for (double value : want) magnitudes.push_back(std::abs(value));
              expect_close(got[0], want, 0, magnitudes);
            });
      }
}

TEST(Cast, BetweenAllTypesOnce) {
  const DType types[] = {DType::f32, DType::f64, DType::bf16, DType::i32};
  for (DType from : types)
    for (DType to : types)
      for (const Shape& shape : {Shape{1}, Shape{17}, Shape{40001}, Shape{45, 1000}}) {
        const std::int64_t stride = shape.dims() == 1 ? 0 : shape[1] + 3;
        const HostTensor x = HostTensor::normal(from, shape, "x", 1000, stride);
        HostTensor want(to, shape, stride);
        for (std::int64_t i = 0; i < x.elements(); ++i) want.set(i, x.at(i));  // i32: towards zero
        everywhere(
            [&](TestDevice& device) {
              HostTensor y(to, shape, stride);
              device.operations().cast(device.stream(), {x, y});
              return std::vector<HostTensor>{y};
            },
            [&](const std::vector<HostTensor>& got) {
              SCOPED_TRACE(fmt::format("{} to {}", name_of(from), name_of(to)));
              if (from == DType::f64 && to == DType::bf16) return;  // the harness rounds twice; see below
              EXPECT_TRUE(got[0].same_bits(want));
            });
      }
}

// Every float next to a bf16 number or to the middle of two.
TEST(Cast, RoundsToNearestEven) {
  std::vector<double> values;
  std::vector<std::uint16_t> want;
  for (std::uint32_t high = 0; high < 0x10000; high += 7)
    for (std::uint32_t low : {0x0000u, 0x0001u, 0x7fffu, 0x8000u, 0x8001u, 0xffffu}) {
      const auto x = std::bit_cast<float>(high << 16 | low);
      values.push_back(static_cast<double>(x));
      const bool up = low > 0x8000u || (low == 0x8000u && (high & 1));
      want.push_back(std::isnan(x) ? 0x7fc0 : static_cast<std::uint16_t>(high + (up ? 1 : 0)));
    }
  const auto count = static_cast<std::int64_t>(values.size());
  for (DType from : {DType::f32, DType::f64}) {
    const HostTensor x = HostTensor::of(from, Shape{count}, values);
    for_each_device([&](TestDevice& device) {
      HostTensor y(DType::bf16, Shape{count});
      device.operations().cast(device.stream(), {x, y});
      const auto* bits = y.view().as<bfloat16>();
      for (std::int64_t i = 0; i < count; ++i) {
        const std::uint16_t expected = want[static_cast<std::size_t>(i)];
        if (expected == 0x7fc0)
          EXPECT_TRUE(std::isnan(static_cast<float>(bits[i]))) << i;
        else
          ASSERT_EQ(bits[i].bits, expected) << i << " " << x.at(i);
      }
    });
  }
}

// 1 + 2^-8 is the middle of two bf16 numbers; a little more must go up though its float is the middle itself.
TEST(Cast, RoundsDoublesOnce) {
  const double middle = 1 + 0x1p-8;
  const HostTensor x = HostTensor::of(
      DType::f64, Shape{6}, {middle, middle + 0x1p-40, middle - 0x1p-40, -middle - 0x1p-40, 1e300, -0x1p-1000});
  for_each_device([&](TestDevice& device) {
    HostTensor y(DType::bf16, Shape{6});
    device.operations().cast(device.stream(), {x, y});
    EXPECT_EQ(y.at(0), 1);
    EXPECT_EQ(y.at(1), 1 + 0x1p-7);
    EXPECT_EQ(y.at(2), 1);
    EXPECT_EQ(y.at(3), -1 - 0x1p-7);
    EXPECT_EQ(y.at(4), std::numeric_limits<double>::infinity());
    EXPECT_EQ(y.at(5), 0);
  });
}

TEST(Fill, WritesTheValueAndNothingElse) {
  for (DType dtype : {DType::f32, DType::f64, DType::bf16, DType::i32})
    for (const Shape& shape : {Shape{1}, Shape{17}, Shape{40001}, Shape{45, 1000}}) {
      const std::int64_t stride = shape.dims() == 1 ? 0 : shape[1] + 3;
      everywhere(
          [&](TestDevice& device) {
            HostTensor y(dtype, shape, stride);
            device.operations().fill(device.stream(), {y, -3});
            return std::vector<HostTensor>{y};
          },
          [&](const std::vector<HostTensor>& got) {
            HostTensor want(dtype, shape, stride);
            want.fill(-3);
            EXPECT_TRUE(got[0].same_bits(want));
          });
    }
  TestDevice device;
  std::int64_t wide[3] = {1, 2, 3};
  std::uint8_t bytes[3] = {1, 2, 3};
  device.operations().fill(device.stream(), {Tensor(wide, DType::i64, Shape{2}), 9});
  device.operations().fill(device.stream(), {Tensor(bytes, DType::u8, Shape{2}), 200});
  EXPECT_TRUE(wide[0] == 9 && wide[1] == 9 && wide[2] == 3);
  EXPECT_TRUE(bytes[0] == 200 && bytes[1] == 200 && bytes[2] == 3);
}

TEST(Add, RefusesMixesWithDoubles) {
  TestDevice device;
  const HostTensor f32(DType::f32, Shape{2}), f64(DType::f64, Shape{2});
  try {
    device.operations().add(device.stream(), {f32, f64, f32});
    FAIL();
  } catch (const BugError& error) {
    EXPECT_STREQ(error.what(), "add: its tensors' dtypes do not go together");
  }
}

}  // namespace
}  // namespace weft
