// The order of micro-batches. An order lists passes over the model; expansion turns each into the nodes of its pieces.
#pragma once

#include <vector>

namespace weft {

struct ModelPass {
  enum class Direction { forward, backward } direction = Direction::forward;
  int micro_batch = 0;
};

// Blocks of micro-batches one after another: all of a block forward, then all backward. Blocks of one: the plain order.
std::vector<ModelPass> block_order(int micro_batches, int block);

}  // namespace weft
