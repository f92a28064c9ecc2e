#include "weft/optim/optimizer.h"

namespace weft {

std::span<const Content> states_of(const OptimizerSpec& spec) {
  static constexpr Content moments[] = {Content::first_moment, Content::second_moment},
                           momentum[] = {Content::momentum};
  if (spec.kind == OptimizerKind::adam) return moments;
  return std::span(momentum).first(spec.momentum == 0 ? 0 : 1);
}

}  // namespace weft
