#include <cmath>
#include <numeric>

#include <gtest/gtest.h>

#include "tests/device/harness.h"
#include "weft/base/error.h"
#include "weft/device/cpu/gemm.h"
#include "weft/device/operations.h"

namespace weft {
namespace {

using Mode = GroupedMatmul::Mode;

struct Case {
  Mode mode;
  std::vector<std::int32_t> counts;
  std::int64_t n, k;
  std::int32_t alignment = 1;
  bool add = false, bias = false;
  DType in = DType::f32, weight = DType::f32, out = DType::f32;
};

constexpr double untouched = 77;  // exact in every dtype

struct Problem {
  HostTensor x, w, y, bias, counts, offsets;
  std::vector<double> want, magnitude;  // of the result; padding rows keep what was there
  std::int64_t rows = 0;

  explicit Problem(const Case& c) {
    std::vector<std::int32_t> starts{0};
    for (std::int32_t count : c.counts)
      starts.push_back(starts.back() + (count + c.alignment - 1) / c.alignment * c.alignment);
    rows = starts.back() + 3;  // rows of no group
    const auto groups = static_cast<std::int64_t>(c.counts.size());
    counts = HostTensor::integers(c.counts);
    offsets = HostTensor::integers(starts);
    x = HostTensor::normal(c.mode == Mode::input_gradient ? c.out : c.in, {rows, c.k}, "x", 1, c.k + 3);
    y = HostTensor::normal(c.mode == Mode::forward ? c.out : c.in, {rows, c.n}, "y", 1, c.n + 2);
    w = HostTensor::normal(c.mode == Mode::weight_gradient ? c.out : c.weight, {groups, c.n, c.k}, "w");
    if (c.bias) bias = HostTensor::normal(c.weight, {groups, c.n}, "bias");
    if (c.mode != Mode::weight_gradient) result(c).fill(untouched);
    want = result(c).values();
    magnitude.assign(want.size(), 0);
    for (std::size_t g = 0; g < c.counts.size(); ++g) compute(c, static_cast<std::int64_t>(g));
  }

  HostTensor& result(const Case& c) { return c.mode == Mode::forward ? y : c.mode == Mode::input_gradient ? x : w; }

  void compute(const Case& c, std::int64_t g) {
    const std::int64_t first = static_cast<std::int64_t>(offsets.at(g)),
                       count = static_cast<std::int64_t>(counts.at(g));
    const auto weight = [&](std::int64_t i, std::int64_t j) { return w.at((g * c.n + i) * c.k + j); };
    const auto put = [&](std::int64_t index, std::int64_t length, double start, const auto& term) {
      double sum = start, size = std::abs(start);
      for (std::int64_t p = 0; p < length; ++p) {
        sum += term(p);
        size += std::abs(term(p));
      }
      want[static_cast<std::size_t>(index)] = sum;
      magnitude[static_cast<std::size_t>(index)] = size;
    };
    if (c.mode == Mode::weight_gradient) {
      for (std::int64_t i = 0; i < c.n; ++i)
        for (std::int64_t j = 0; j < c.k; ++j)
          put((g * c.n + i) * c.k + j, count, c.add ? weight(i, j) : 0.0,
              [&](std::int64_t p) { return y.at(first + p, i) * x.at(first + p, j); });
      return;
    }
    for (std::int64_t r = first; r < first + count; ++r)
      if (c.mode == Mode::forward)
        for (std::int64_t i = 0; i < c.n; ++i)
          put(r * c.n + i, c.k, c.bias ? bias.at(g * c.n + i) : 0.0,
              [&](std::int64_t p) { return x.at(r, p) * weight(i, p); });
      else
        for (std::int64_t j = 0; j < c.k; ++j)
          put(r * c.k + j, c.n, 0, [&](std::int64_t p) { return y.at(r, p) * weight(p, j); });
  }

  GroupedMatmul operation(const Case& c) const {
    GroupedMatmul op;
    op.mode = c.mode;
    op.x = x;
    op.w = w;
    op.y = y;
    op.bias = bias;
    op.groups.counts = counts;
    op.groups.offsets = offsets;
    op.store = c.add ? Store::add : Store::write;
    return op;
  }
};

void check(const Case& c, TestDevice& device) {
  Problem problem(c);
  device.operations().grouped_matmul(device.stream(), problem.operation(c));
  const std::int32_t longest = *std::max_element(c.counts.begin(), c.counts.end());
  const std::int64_t length = c.mode == Mode::forward ? c.k : c.mode == Mode::input_gradient ? c.n : longest;
  expect_close(problem.result(c), problem.want, length + 1, problem.magnitude);
}

constexpr Mode modes[] = {Mode::forward, Mode::input_gradient, Mode::weight_gradient};

TEST(GroupedMatmul, UnevenGroupsAndPadding) {
  for_each_device([](TestDevice& device) {
    for (Mode mode : modes)
      for (std::int32_t alignment : {1, 16}) {
        SCOPED_TRACE(fmt::format("mode {} alignment {}", static_cast<int>(mode), alignment));
        check({.mode = mode, .counts = {5, 0, 1, 40, 17}, .n = 70, .k = 33, .alignment = alignment}, device);
        check({.mode = mode, .counts = {0, 0, 120, 0}, .n = 130, .k = 65, .alignment = alignment}, device);
      }
    check({.mode = Mode::forward, .counts = {3, 0, 9}, .n = 66, .k = 20, .bias = true}, device);
    check({.mode = Mode::weight_gradient, .counts = {3, 0, 9}, .n = 66, .k = 20, .add = true}, device);
    check({.mode = Mode::forward, .counts = {1000}, .n = 5, .k = 8}, device);
  });
}

TEST(GroupedMatmul, EveryDtype) {
  const auto dtypes = {DType::f32, DType::f64, DType::bf16};
  for_each_device([&](TestDevice& device) {
    for (Mode mode : modes) {
      for (DType dtype : dtypes) {
        SCOPED_TRACE(fmt::format("mode {} {}", static_cast<int>(mode), name_of(dtype)));
        check({.mode = mode, .counts = {9, 30}, .n = 66, .k = 33, .in = dtype, .weight = dtype, .out = dtype}, device);
      }
      check({.mode = mode, .counts = {9, 30}, .n = 66, .k = 33, .in = DType::bf16, .weight = DType::bf16}, device);
    }
  });
}

TEST(GroupedMatmul, NoRowsAtAll) {
  for_each_device([](TestDevice& device) {
    for (Mode mode : modes) check({.mode = mode, .counts = {0, 0, 0}, .n = 10, .k = 12}, device);
    check({.mode = Mode::weight_gradient, .counts = {0, 0}, .n = 10, .k = 12, .add = true}, device);
  });
}

// So that layouts of experts over ranks, and teams of any size, give the same bits.
TEST(GroupedMatmul, BitsDoNotDependOnThreadsOrOtherGroups) {
  if (has_bfloat16_instructions()) GTEST_SKIP() << "bf16 products go to oneDNN here";
  for (DType dtype : {DType::f32, DType::bf16})
    for (Mode mode : modes) {
      const Case c{
          .mode = mode, .counts = {50, 0, 1, 7, 3}, .n = 150, .k = 400, .in = dtype, .weight = dtype, .out = dtype};
      Problem one(c), four(c), alone(c);
      TestDevice single(1), team(4);
      single.operations().grouped_matmul(single.stream(), one.operation(c));
      team.operations().grouped_matmul(team.stream(), four.operation(c));
      EXPECT_TRUE(one.result(c).same_bits(four.result(c)));
      for (std::int64_t g = 0; g < 5; ++g) {
        GroupedMatmul op = alone.operation(c);
        op.w = op.w.slice_rows(g, 1);
        op.groups.counts = op.groups.counts.slice_rows(g, 1);
        op.groups.offsets = op.groups.offsets.slice_rows(g, 2);
        single.operations().grouped_matmul(single.stream(), op);
      }
      EXPECT_TRUE(one.result(c).same_bits(alone.result(c)));
    }
}

TEST(GroupedMatmul, CountsThatLeaveTheRowsAreRefused) {
  TestDevice device;
  const Case c{.mode = Mode::forward, .counts = {4, 4}, .n = 3, .k = 3};
  Problem problem(c);
  problem.counts.set(1, 100);
  try {
    device.operations().grouped_matmul(device.stream(), problem.operation(c));
    FAIL() << "not refused";
  } catch (const BugError& error) {
    EXPECT_NE(std::string(error.what()).find("grouped_matmul: a group lies outside the rows"), std::string::npos)
        << error.what();
  }
}

}  // namespace
}  // namespace weft
