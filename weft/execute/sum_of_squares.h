// The arithmetic of nodes that sum the squares of gradients.
#pragma once

#include "weft/device/operations.h"
#include "weft/device/tensor.h"
#include "weft/plan/plan.h"

namespace weft {

// tensor_of(buffer): the tensor that a use of the node is bound to.
template <class TensorOf>
void sum_of_squares(const Plan& plan, const Node& node, const Operations& operations, Stream& stream,
                    const TensorOf& tensor_of) {
  const auto uses = plan.uses_of(node);
  const Tensor sums = tensor_of(uses.back().buffer);
  for (std::int64_t row = 0; row < sums.rows(); ++row) {
    std::vector<Tensor> gradients;
    for (const BufferUse& use : uses.first(uses.size() - 1))
      if (plan.value_of(use.buffer).norm_row == row) gradients.push_back(tensor_of(use.buffer));
    operations.sum_of_squares(stream, {gradients, sums.slice_rows(row, 1)});
  }
}

}  // namespace weft
