#include <cmath>

#include <gtest/gtest.h>

#include "tests/device/harness.h"
#include "weft/base/error.h"
#include "weft/device/cpu/gemm.h"
#include "weft/device/operations.h"

namespace weft {
namespace {

struct Case {
  std::int64_t m, n, k;
  bool transpose_a = false, transpose_b = false, add = false, bias = false, residual = false, strided = false;
  DType a = DType::f32, b = DType::f32, c = DType::f32;
};

std::string text(const Case& x) {
  return fmt::format("{}x{}x{} {}{} {}{}{}{} {}*{}->{}", x.m, x.n, x.k, x.transpose_a ? 'T' : 'N',
                     x.transpose_b ? 'T' : 'N', x.add ? "add " : "", x.bias ? "bias " : "",
                     x.residual ? "residual " : "", x.strided ? "strided" : "", name_of(x.a), name_of(x.b),
                     name_of(x.c));
}

// Operands, the exact result and the sum of the terms' absolute values.
struct Problem {
  HostTensor a, b, c, bias, residual;
  std::vector<double> want, magnitude;

  explicit Problem(const Case& x, bool with_result = true) {
    const auto matrix = [&](DType dtype, std::int64_t rows, std::int64_t columns, const char* name) {
      return HostTensor::normal(dtype, {rows, columns}, name, 1, x.strided ? columns + 5 : 0);
    };
    a = x.transpose_a ? matrix(x.a, x.k, x.m, "a") : matrix(x.a, x.m, x.k, "a");
    b = x.transpose_b ? matrix(x.b, x.n, x.k, "b") : matrix(x.b, x.k, x.n, "b");
    c = matrix(x.c, x.m, x.n, "c");
    if (x.bias) bias = HostTensor::normal(x.b, {x.n}, "bias");
    if (x.residual) residual = matrix(x.c, x.m, x.n, "residual");
    for (std::int64_t i = 0; i < (with_result ? x.m : 0); ++i)
      for (std::int64_t j = 0; j < x.n; ++j) {
        double sum = 0, size = 0;
        const auto term = [&](double value) {
          sum += value;
          size += std::abs(value);
        };
        for (std::int64_t p = 0; p < x.k; ++p)
          term((x.transpose_a ? a.at(p, i) : a.at(i, p)) * (x.transpose_b ? b.at(j, p) : b.at(p, j)));
        if (x.add) term(c.at(i, j));
        if (x.bias) term(bias.at(j));
        if (x.residual) term(residual.at(i, j));
        want.push_back(sum);
        magnitude.push_back(size);
      }
  }

  Matmul operation(const Case& x) const {
    Matmul op;
    op.a = a;
    op.b = b;
    op.c = c;
    op.transpose_a = x.transpose_a ? Transposed::yes : Transposed::no;
    op.transpose_b = x.transpose_b ? Transposed::yes : Transposed::no;
    op.store = x.add ? Store::add : Store::write;
    op.bias = bias;
    op.residual = residual;
    return op;
  }
};

void check(const Case& x, TestDevice& device) {
  SCOPED_TRACE(text(x));
  Problem problem(x);
  device.operations().matmul(device.stream(), problem.operation(x));
  expect_close(problem.c, problem.want, x.k + 3, problem.magnitude);
}

TEST(Matmul, OddSizesAndTransposes) {
  for_each_device([](TestDevice& device) {
    for (std::int64_t m : {1, 3, 17, 64, 130})
      for (std::int64_t n : {1, 3, 17, 64, 130})
        for (std::int64_t k : {1, 17, 130}) {
          const int turn = static_cast<int>(m + n + k);
          check({.m = m, .n = n, .k = k, .transpose_a = turn % 2 == 0, .transpose_b = turn % 3 != 0}, device);
        }
    for (bool ta : {false, true})
      for (bool tb : {false, true})
        check({.m = 65, .n = 67, .k = 33, .transpose_a = ta, .transpose_b = tb, .strided = true}, device);
  });
}

TEST(Matmul, SumsLongerThanABlock) {
  for_each_device([](TestDevice& device) {
    for (DType c : {DType::f32, DType::bf16})
      for (bool add : {false, true})
        check({.m = 19, .n = 70, .k = 1000, .transpose_b = true, .add = add, .bias = true, .c = c}, device);
    check({.m = 20, .n = 70, .k = 801, .residual = true, .a = DType::bf16, .b = DType::bf16, .c = DType::bf16}, device);
    check({.m = 20, .n = 70, .k = 801, .residual = true}, device);
  });
}

TEST(Matmul, MoreColumnsAndRowsThanABlock) {
  TestDevice device(2);
  check({.m = 11, .n = 2100, .k = 9, .transpose_b = true}, device);
  check({.m = 2100, .n = 11, .k = 9, .transpose_a = true}, device);
  check({.m = 1000, .n = 70, .k = 400, .c = DType::bf16}, device);
}

TEST(Matmul, EveryDtype) {
  const auto dtypes = {DType::f32, DType::f64, DType::bf16};
  for_each_device([&](TestDevice& device) {
    for (DType a : dtypes)
      for (DType b : dtypes)
        for (DType c : dtypes) {
          // A sum in double that is stored narrower, or the reverse: the harness derives its bound from c, which is
          // the looser one except for f64 results of narrow factors, and those are summed in double too.
          check({.m = 17, .n = 66, .k = 40, .transpose_a = true, .a = a, .b = b, .c = c}, device);
          check({.m = 17, .n = 66, .k = 40, .transpose_b = true, .add = true, .bias = true, .a = a, .b = b, .c = c},
                device);
        }
  });
}

TEST(Matmul, StridedOperandsKeepWhatLiesBetweenRows) {
  for_each_device([](TestDevice& device) {
    for (DType dtype : {DType::f32, DType::f64, DType::bf16})
      for (bool add : {false, true})
        check({.m = 30,
               .n = 129,
               .k = 50,
               .transpose_b = true,
               .add = add,
               .residual = !add,
               .strided = true,
               .a = dtype,
               .b = dtype,
               .c = dtype},
              device);
  });
}

TEST(Matmul, NothingToSumWritesZerosOrLeavesTheResult) {
  for_each_device([](TestDevice& device) {
    check({.m = 5, .n = 7, .k = 0}, device);
    check({.m = 5, .n = 7, .k = 0, .add = true}, device);
    check({.m = 5, .n = 7, .k = 0, .bias = true}, device);
    check({.m = 0, .n = 7, .k = 3}, device);
  });
}

// The promise of blocked_gemm.h: bits depend on the factors only.
TEST(Matmul, BitsDoNotDependOnThreadsOrOtherRows) {
  if (has_bfloat16_instructions()) GTEST_SKIP() << "bf16 products go to oneDNN here";
  for (DType dtype : {DType::f32, DType::f64, DType::bf16}) {
    const Case x{.m = 150, .n = 300, .k = 900, .transpose_b = true, .a = dtype, .b = dtype, .c = dtype};
    Problem one(x, false), three(x, false), rows(x, false);
    TestDevice single(1), team(3);
    single.operations().matmul(single.stream(), one.operation(x));
    team.operations().matmul(team.stream(), three.operation(x));
    EXPECT_TRUE(one.c.same_bits(three.c)) << name_of(dtype);
    for (std::int64_t i = 0; i < x.m; i += 7) {
      Matmul op = rows.operation(x);
      const std::int64_t count = std::min<std::int64_t>(7, x.m - i);
      op.a = op.a.slice_rows(i, count);
      op.c = op.c.slice_rows(i, count);
      single.operations().matmul(single.stream(), op);
    }
    EXPECT_TRUE(one.c.same_bits(rows.c)) << name_of(dtype);
  }
}

TEST(Matmul, ShapesThatDoNotFitAreRefused) {
  TestDevice device;
  HostTensor a(DType::f32, {3, 4}), b(DType::f32, {5, 2}), c(DType::f32, {3, 2});
  Matmul op;
  op.a = a;
  op.b = b;
  op.c = c;
  try {
    device.operations().matmul(device.stream(), op);
    FAIL() << "not refused";
  } catch (const BugError& error) {
    EXPECT_NE(std::string(error.what()).find("matmul: a and b differ in the dim that is summed over"),
              std::string::npos)
        << error.what();
  }
}

// oneDNN's path, forced: where the CPU lacks bfloat16 instructions it emulates them.
TEST(BfloatProduct, AgreesWithTheExactResult) {
  if (!supported(Isa::v4)) GTEST_SKIP() << "oneDNN needs AVX-512 for bfloat16";
  for (bool varying : {false, true})
    for (DType c : {DType::f32, DType::bf16})
      for (const auto& [ta, tb] : {std::pair{false, true}, {false, false}, {true, false}})
        for (int extra = 0; extra < 4; ++extra) {
          Case x{.m = 37,
                 .n = 66,
                 .k = 77,
                 .transpose_a = ta,
                 .transpose_b = tb,
                 .add = extra == 1,
                 .bias = extra == 2,
                 .residual = extra == 3,
                 .strided = extra % 2 == 0,
                 .a = DType::bf16,
                 .b = DType::bf16,
                 .c = c};
          SCOPED_TRACE(text(x));
          Problem problem(x);
          Product product;
          product.m = x.m, product.n = x.n, product.k = x.k;
          const Tensor a = problem.a, b = problem.b, out = problem.c, bias = problem.bias, residual = problem.residual;
          product.a = {a.data, a.dtype, a.stride, !ta};
          product.b = {b.data, b.dtype, b.stride, tb};
          product.c = out.data, product.c_dtype = out.dtype, product.c_stride = out.stride;
          product.add = x.add;
          product.bias = bias.data, product.bias_dtype = bias.dtype;
          product.residual = residual.data, product.residual_stride = residual.stride;
          product.varying = varying;
          ASSERT_TRUE(suits_bfloat16_product(product));
          bfloat16_product(product);
          expect_close(problem.c, problem.want, x.k + 3, problem.magnitude);
        }
}

}  // namespace
}  // namespace weft
