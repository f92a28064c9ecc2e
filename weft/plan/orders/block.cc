#include <algorithm>

#include "weft/plan/orders/order.h"

namespace weft {

PassOrder block_order(int micro_batches, int block) {
  PassOrder order;
  for (int first = 0; first < micro_batches; first += block) {
    const int end = std::min(first + block, micro_batches);
    for (int m = first; m < end; ++m) order.push_back({ModelPass::Direction::forward, m});
    for (int m = first; m < end; ++m) order.push_back({ModelPass::Direction::backward, m});
  }
  return order;
}

}  // namespace weft
