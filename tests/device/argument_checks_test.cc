// Each fault is refused with the operation's name and the reason; what every device accepts passes.
#include "weft/device/argument_checks.h"

#include <gtest/gtest.h>

#include "weft/base/error.h"

namespace weft {
namespace {

template <class Operation>
std::string message(const Operation& op) {
  try {
    check_arguments("it", op);
  } catch (const BugError& error) {
    return error.what();
  }
  return "";
}

Tensor f32(const Shape& shape) { return Tensor(nullptr, DType::f32, shape); }
Tensor f64(const Shape& shape) { return Tensor(nullptr, DType::f64, shape); }
Tensor i32(const Shape& shape) { return Tensor(nullptr, DType::i32, shape); }

TEST(ArgumentChecks, Products) {
  const Matmul good{.a = f32({2, 3}), .b = f32({3, 4}), .c = f32({2, 4})};
  EXPECT_EQ(message(good), "");
  Matmul x = good;
  x.a = f32({3, 3});
  EXPECT_EQ(message(x), "it: a and c differ in rows");
  x.transpose_a = Transposed::yes;
  x.a = f32({3, 2});
  EXPECT_EQ(message(x), "");
  x = good;
  x.b = f32({2, 4});
  EXPECT_EQ(message(x), "it: a and b differ in the dim that is summed over");
  x = good;
  x.residual = f32({2, 4});
  EXPECT_EQ(message(x), "");
  x.store = Store::add;
  EXPECT_EQ(message(x), "it: a residual goes only with Store::write");
  const Groups groups{i32({2}), i32({3})};
  EXPECT_EQ(message(GroupedBias{f32({5, 3}), f32({2, 3}), f32({5}), groups}), "");
  EXPECT_EQ(message(GroupedBias{f32({5, 3}), f32({2, 3}), f64({5}), groups}), "it: the scale is not acc [rows]");
  EXPECT_EQ(message(GroupedColumnSum{f32({5, 3}), f32({3, 3}), groups}), "it: counts or offsets do not fit the groups");
}

TEST(ArgumentChecks, Routing) {
  RouteRows route{i32({4, 2}), i32({3}), i32({4}), i32({4, 2}), i32({8}), {}};
  EXPECT_EQ(message(route), "");
  route.alignment = 0;
  EXPECT_EQ(message(route), "it: the alignment is not positive");
  GatherRows gather{f32({4, 8}), i32({6}), f32({6, 8}), {}};
  EXPECT_EQ(message(gather), "");
  gather.y = f32({0, 8});
  EXPECT_EQ(message(gather), "") << "no rows";
  gather.y = f32({7, 8});
  EXPECT_EQ(message(gather), "it: the index is not i32 [rows]");
  CountExperts count{.indices = i32({6, 2}), .counts = f64({3, 4}), .k = 2, .sequences = 3};
  EXPECT_EQ(message(count), "");
  count.k = 0;
  EXPECT_EQ(message(count), "it: k or the number of sequences is not positive");
}

TEST(ArgumentChecks, Training) {
  const Tensor values = f64({StepValues::count});
  EXPECT_EQ(message(ClipFactor{{}, {}, values}), "");
  EXPECT_EQ(message(ClipFactor{{}, i32({1}), values}), "it: needs its scalars in f32 or f64");
  EXPECT_EQ(message(ClipFactor{{}, {}, f64({2})}), "it: step_values are not f64 [count]");
  CrossEntropy loss{f32({4, 9}), i32({4}), f32({1}), f32({1}), {}, {}, 9};
  EXPECT_EQ(message(loss), "");
  loss.vocabulary = 10;
  EXPECT_EQ(message(loss), "it: the vocabulary exceeds the logits' columns");
  EXPECT_EQ(message(Embedding{i32({4}), f32({9, 3}), f32({4, 3})}), "");
  EXPECT_EQ(message(Embedding{i32({4}), f32({9, 2}), f32({4, 3})}), "it: weight and y differ in columns");
}

}  // namespace
}  // namespace weft
