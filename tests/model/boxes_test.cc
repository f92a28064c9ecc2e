// Boxes of parameters: where their elements lie, and that every way of holding a parameter holds the same numbers.
#include <numeric>

#include <gtest/gtest.h>

#include "weft/base/error.h"
#include "weft/model/logical_parameters.h"

namespace weft {
namespace {

ParameterPart part_of(const Shape& shape, const Box& box, const BoxPlace& place) {
  ParameterPart part;
  part.identity = {0, 3, Role::gate, 7};
  part.shape = shape;
  part.box = box;
  part.place = place;
  part.init = {Init::Kind::normal, 0.5};
  return part;
}

std::vector<BoxRun> all_runs(const ParameterPart& part) {
  const BoxRuns runs = part.runs();
  std::vector<BoxRun> all;
  for (std::int64_t r = 0; r < runs.size(); ++r) all.push_back(runs[r]);
  return all;
}

// "logical > tensor x count, ..."
std::string text_of(const std::vector<BoxRun>& runs) {
  std::string text;
  for (const BoxRun& run : runs)
    text += fmt::format("{}{}>{}x{}", text.empty() ? "" : " ", run.logical, run.tensor, run.count);
  return text;
}

TEST(Boxes, AWholeParameterIsOneRun) {
  const Shape shape{3, 4};
  EXPECT_EQ(text_of(all_runs(part_of(shape, Box::whole(shape), {100}))), "0>100x12");
  EXPECT_EQ(text_of(all_runs(part_of({}, Box::whole({}), {5}))), "0>5x1") << "a scalar";
  EXPECT_EQ(text_of(all_runs(part_of({0, 4}, Box::whole({0, 4}), {5}))), "");
}

TEST(Boxes, RowsAreOneRunAndColumnsOneForEachRow) {
  EXPECT_EQ(text_of(all_runs(part_of({6, 4}, {{2, 0}, {2, 4}}, {10}))), "8>10x8");
  EXPECT_EQ(text_of(all_runs(part_of({3, 4}, {{0, 2}, {3, 2}}, {10}))), "2>10x2 6>12x2 10>14x2");
  EXPECT_EQ(text_of(all_runs(part_of({2, 3, 4}, {{0, 1, 0}, {2, 2, 4}}, {0}))), "4>0x8 16>8x8");
}

// gate and up in turns, two rows of each: gate's rows are 0, 1, 4, 5 of the tensor.
TEST(Boxes, InterleavedRowsLieInBlocks) {
  const Shape shape{4, 3};
  EXPECT_EQ(text_of(all_runs(part_of(shape, Box::whole(shape), {0, 2, 12}))), "0>0x3 3>3x3 6>12x3 9>15x3");
  EXPECT_EQ(text_of(all_runs(part_of(shape, Box::whole(shape), {6, 2, 12}))), "0>6x3 3>9x3 6>18x3 9>21x3");
  // The second of two ranks: rows 4 to 7 of 8.
  EXPECT_EQ(text_of(all_runs(part_of({8, 3}, {{4, 0}, {4, 3}}, {0, 2, 12}))), "12>0x3 15>3x3 18>12x3 21>15x3");
}

TEST(Boxes, ARangeOfTheParameterIsCutOutOfTheRuns) {
  const ParameterPart part = part_of({3, 4}, {{0, 1}, {3, 2}}, {10});  // 1-2, 5-6, 9-10
  const auto within = [&](std::int64_t first, std::int64_t count) {
    std::vector<BoxRun> runs;
    part.runs().within(first, count, [&](const BoxRun& run) { runs.push_back(run); });
    return text_of(runs);
  };
  EXPECT_EQ(within(0, 12), "1>10x2 5>12x2 9>14x2");
  EXPECT_EQ(within(2, 4), "2>11x1 5>12x1");
  EXPECT_EQ(within(3, 2), "");
  EXPECT_EQ(within(10, 2), "10>15x1");
  EXPECT_EQ(within(11, 1), "");
}

TEST(Boxes, ThatDoNotFitAreOurBug) {
  EXPECT_THROW(part_of({3, 4}, {{1, 0}, {3, 4}}, {}).runs(), BugError);
  EXPECT_THROW(part_of({3, 4}, {{0}, {3}}, {}).runs(), BugError);
  EXPECT_THROW(part_of({3, 4}, Box::whole({3, 4}), {0, 2, 8}).runs(), BugError) << "three rows in blocks of two";
}

// However a parameter is cut and laid out, its elements begin with the same values, and together they are the parameter.
TEST(Boxes, InitialValuesDependOnTheLogicalIndexAlone) {
  const Shape shape{8, 6};
  for (DType dtype : {DType::f64, DType::f32, DType::bf16}) {
    LogicalParameters whole;
    HostTensor tensor(dtype, 48);
    const ParameterPart all = part_of(shape, Box::whole(shape), {});
    initialise(all, 11, tensor);
    ASSERT_TRUE(whole.add(all, tensor));

    const std::vector<std::vector<ParameterPart>> ways = {
        {part_of(shape, {{0, 0}, {4, 6}}, {}), part_of(shape, {{4, 0}, {4, 6}}, {3})},
        {part_of(shape, {{0, 0}, {8, 3}}, {}), part_of(shape, {{0, 3}, {8, 3}}, {})},
        {part_of(shape, {{0, 0}, {4, 6}}, {0, 2, 24}), part_of(shape, {{4, 0}, {4, 6}}, {12, 2, 24})},
        {part_of(shape, Box::whole(shape), {0, 4, 48})},
    };
    for (const std::vector<ParameterPart>& parts : ways) {
      LogicalParameters together;
      for (const ParameterPart& part : parts) {
        HostTensor here(dtype, 100);
        initialise(part, 11, here);
        ASSERT_TRUE(together.add(part, here));
      }
      EXPECT_TRUE(together == whole);
      // And back: what is copied out of the whole is what a rank would hold.
      for (const ParameterPart& part : parts) {
        HostTensor here(dtype, 100), copied(dtype, 100);
        initialise(part, 11, here);
        whole.copy_to(part, copied);
        EXPECT_EQ(here.bytes, copied.bytes);
      }
    }
  }
}

TEST(LogicalParameters, ReplicasMustAgreeBitByBit) {
  const Shape shape{4};
  const ParameterPart part = part_of(shape, Box::whole(shape), {});
  HostTensor a(DType::f32, 4), b(DType::f32, 4);
  set_number(a, 2, 1.5);
  set_number(b, 2, 1.5);
  LogicalParameters parameters;
  EXPECT_TRUE(parameters.add(part, a));
  EXPECT_TRUE(parameters.add(part, b));
  set_number(b, 3, -0.0);  // equal as a number, and yet other bits
  EXPECT_FALSE(parameters.add(part, b));
  LogicalParameters others;
  EXPECT_TRUE(others.add(part, b));
  EXPECT_FALSE(parameters.add(others));
  EXPECT_FALSE(parameters == others);
}

TEST(LogicalParameters, AskForNoElementThatIsMissing) {
  LogicalParameters parameters;
  const ParameterPart half = part_of({4, 2}, {{0, 0}, {2, 2}}, {});
  EXPECT_TRUE(parameters.add(half, HostTensor(DType::f32, 4)));
  EXPECT_THROW(parameters.at(half.identity), BugError);
  EXPECT_TRUE(parameters.add(part_of({4, 2}, {{2, 0}, {2, 2}}, {}), HostTensor(DType::f32, 4)));
  EXPECT_EQ(parameters.numbers(half.identity), std::vector<double>(8));
  EXPECT_THROW(parameters.at({0, 4, Role::up}), BugError);
}

TEST(HostTensors, RoundOnceToTheirType) {
  HostTensor tensor(DType::bf16, 2);
  set_number(tensor, 1, 1.0 + 1.0 / 256);  // half way between two bf16 numbers: to the even one
  EXPECT_EQ(number_at(tensor, 0), 0);
  EXPECT_EQ(number_at(tensor, 1), 1.0);
  HostTensor exact(DType::f64, 1);
  set_number(exact, 0, 0.1);
  EXPECT_EQ(number_at(exact, 0), 0.1);
}

}  // namespace
}  // namespace weft
