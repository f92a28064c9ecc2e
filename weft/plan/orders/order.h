// Which micro-batch when. An order lists passes over the model; expansion turns each into the nodes of its pieces.
#pragma once

#include <vector>

namespace weft {

struct ModelPass {
  enum class Direction { forward, backward } direction = Direction::forward;
  int micro_batch = 0;
};

// Micro-batches one after another, each forward then backward.
std::vector<ModelPass> plain_order(int micro_batches);

}  // namespace weft
