#include "weft/plan/orders/order.h"

namespace weft {

std::vector<ModelPass> plain_order(int micro_batches) {
  std::vector<ModelPass> order;
  for (int m = 0; m < micro_batches; ++m) {
    order.push_back({ModelPass::Direction::forward, m});
    order.push_back({ModelPass::Direction::backward, m});
  }
  return order;
}

}  // namespace weft
