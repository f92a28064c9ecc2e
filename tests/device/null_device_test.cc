#include <gtest/gtest.h>

#include "tests/device/harness.h"
#include "weft/device/missing_operations.h"
#include "weft/device/null/device.h"
#include "weft/device/operations.h"

namespace weft {
namespace {

Tensor shaped(DType dtype, const Shape& shape) { return Tensor(nullptr, dtype, shape); }

TEST(NullDevice, ProductsCountTwoForEachTerm) {
  NullDevice device;
  NullStream stream;
  Matmul op;
  op.a = shaped(DType::bf16, {10, 20});
  op.b = shaped(DType::bf16, {30, 20});
  op.c = shaped(DType::f32, {10, 30});
  op.transpose_b = Transposed::yes;
  device.operations().matmul(stream, op);
  EXPECT_EQ(stream.total().flops, 2.0 * 10 * 20 * 30);
  EXPECT_EQ(stream.total().bytes, 2.0 * (10 * 20 + 30 * 20) + 4.0 * 10 * 30);

  stream.reset();
  GroupedMatmul grouped;
  grouped.x = shaped(DType::f32, {64, 5});
  grouped.w = shaped(DType::f32, {4, 7, 5});
  grouped.y = shaped(DType::f32, {64, 7});
  device.operations().grouped_matmul(stream, grouped);
  EXPECT_EQ(stream.total().flops, 2.0 * 64 * 7 * 5);
  EXPECT_EQ(stream.total(OperationKind::matrix).flops, stream.total().flops);
}

// Counted pair by pair.
TEST(NullDevice, AttentionCountsThePairsItSees) {
  for (std::int64_t length : {1, 6, 40})
    for (std::int64_t window : {0, 1, 5, 100}) {
      Attention op;
      op.q = shaped(DType::f32, {3 * length, 4 * 8});
      op.k = shaped(DType::f32, {3 * length, 2 * 8});
      op.v = shaped(DType::f32, {3 * length, 2 * 5});
      op.out = shaped(DType::f32, {3 * length, 4 * 5});
      op.length = length, op.heads = 4, op.kv_heads = 2, op.dim = 8, op.value_dim = 5, op.window = window;
      std::int64_t pairs = 0;
      for (std::int64_t i = 0; i < length; ++i)
        for (std::int64_t j = 0; j <= i; ++j) pairs += window == 0 || i - j < window ? 1 : 0;
      const double forward = 2.0 * static_cast<double>(3 * pairs * 4 * (8 + 5));
      EXPECT_DOUBLE_EQ(cost_of(op).flops, forward) << length << " window " << window;
      AttentionBackward backward;
      backward.forward = op;
      EXPECT_DOUBLE_EQ(cost_of(backward).flops, 2.5 * forward);
      op.length = 0;  // boundaries alone: one document is the bound
      EXPECT_GE(cost_of(op).flops, forward);
    }
}

TEST(NullDevice, RecordsWhatItWasAskedByKind) {
  NullDevice device;
  NullStream stream;
  Add add;
  add.a = add.b = add.y = shaped(DType::f32, {8, 4});
  device.operations().add(stream, add);
  device.operations().add(stream, add);
  Fill fill;
  fill.y = shaped(DType::f64, {10});
  device.operations().fill(stream, fill);
  EXPECT_EQ(stream.used(), (std::vector<std::string>{"add", "fill"}));
  EXPECT_EQ(stream.by_operation().at("add").calls, 2);
  EXPECT_EQ(stream.by_operation().at("add").cost.bytes, 2.0 * 3 * 32 * 4);
  EXPECT_EQ(stream.total(OperationKind::elementwise).bytes, 2.0 * 3 * 32 * 4 + 80);
  EXPECT_EQ(stream.total(OperationKind::matrix).bytes, 0);
  stream.reset();
  EXPECT_TRUE(stream.used().empty());
}

TEST(MissingOperations, NamesWhatATableLacks) {
  const std::vector<std::string> used{"add", "matmul", "no_such_thing"};
  Operations table;
  EXPECT_EQ(missing_operations(table, used), used);
  table = NullDevice().operations();
  EXPECT_EQ(missing_operations(table, used), std::vector<std::string>{"no_such_thing"});
  table.matmul = nullptr;
  EXPECT_EQ(missing_operations(table, used), (std::vector<std::string>{"matmul", "no_such_thing"}));
}

TEST(MissingOperations, CpuAndNullHaveEveryOperation) {
  const std::vector<std::string> all = operation_names();
  EXPECT_GT(all.size(), 20u);
  EXPECT_TRUE(missing_operations(NullDevice().operations(), all).empty());
  for (Isa isa : supported_isas())
    EXPECT_EQ(missing_operations(CpuDevice(isa).operations(), all), std::vector<std::string>{}) << name_of(isa);
}

TEST(NullDevice, MemoryIsASizeOnly) {
  NullDevice device;
  const auto memory = device.allocate(std::size_t{1} << 60);
  EXPECT_EQ(memory->bytes(), std::size_t{1} << 60);
  EXPECT_EQ(memory->data(), nullptr);
}

}  // namespace
}  // namespace weft
