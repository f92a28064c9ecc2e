#include "weft/model/box_pieces.h"

#include <gtest/gtest.h>

namespace weft {
namespace {

std::vector<std::int64_t> elements_of(const Shape& logical, const Box& box) {
  std::vector<std::int64_t> elements;
  const BoxRuns runs(logical, box, {});
  for (std::int64_t r = 0; r < runs.size(); ++r)
    for (std::int64_t i = 0; i < runs[r].count; ++i) elements.push_back(runs[r].logical + i);
  return elements;
}

TEST(BoxPieces, one_after_another_are_the_box) {
  const Shape logical{4, 5, 6};
  for (const Box& box : {Box::whole(logical), Box{{1, 0, 2}, {3, 5, 3}}, Box{{0, 4, 0}, {4, 1, 6}}}) {
    const std::vector<std::int64_t> all = elements_of(logical, box);
    for (std::int64_t most = 1; most <= 130; ++most) {
      std::vector<std::int64_t> together;
      for (const Box& piece : pieces_of(box, most)) {
        EXPECT_LE(piece.extent.elements(), most);
        const std::vector<std::int64_t> elements = elements_of(logical, piece);
        together.insert(together.end(), elements.begin(), elements.end());
      }
      EXPECT_EQ(together, all) << to_text(box.extent) << " by " << most;
    }
  }
}

TEST(BoxPieces, are_as_large_as_may_be) {
  EXPECT_EQ(pieces_of(Box::whole({4, 5, 6}), 120).size(), 1u);
  EXPECT_EQ(pieces_of(Box::whole({4, 5, 6}), 119).size(), 2u);  // 3 and 1 of 30
  EXPECT_EQ(pieces_of(Box::whole({4, 5, 6}), 29).size(), 8u);   // 4 and 1 of 6, four times
  EXPECT_EQ(pieces_of(Box::whole({7}), 3).size(), 3u);
  EXPECT_EQ(pieces_of(Box{}, 1).size(), 1u) << "a scalar";
  EXPECT_TRUE(pieces_of(Box{{0, 2}, {3, 0}}, 1).empty());
}

}  // namespace
}  // namespace weft
