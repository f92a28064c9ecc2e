// Token embedding: y[t] = weight[tokens[t]].
#include "weft/device/operations.h"
#include "weft/model/layers/layers.h"

namespace weft {

ValueId add_embedding(ModuleBuilder& b) {
  const ModelConfig& c = b.config();
  b.enter(0, -1, "embedding");
  b.next_unit();
  const Shape weight_shape{c.embedding_rows(), c.hidden};
  const ParameterValues w =
      b.parameter("weight", weight_shape, {b.part(Role::embedding, weight_shape, b.matrix_init())});
  const ValueId tokens = b.module().tokens;
  const ValueId y = b.activation("y", b.compute(), {b.tokens(), c.hidden});
  const ValueId dy = b.gradient_of(y);

  Piece& p = b.piece("lookup");
  p.forward = {{{tokens}, {w.value}, {y, Access::write}}, [=](const Run& r) {
                 r.ops().embedding(r.stream(), {r[tokens], r[w.value], r[y]});
               }};
  p.weight_gradient = {{{tokens}, {dy}, {w.gradient, Access::add}}, [=](const Run& r) {
                         r.ops().embedding_gradient(r.stream(), {r[tokens], r[dy], r[w.gradient], r.store(w.gradient)});
                       }};
  return y;
}

}  // namespace weft
