#include "weft/model/module.h"

#include <fmt/format.h>

#include "weft/base/error.h"
#include "weft/device/operations/optimizer.h"
#include "weft/model/layers/layers.h"

namespace weft {

std::string_view name_of(Phase phase) {
  switch (phase) {
    case Phase::forward:
      return "forward";
    case Phase::backward:
      return "backward";
    case Phase::weight_gradient:
      return "weight_gradient";
    case Phase::evaluate:
      return "evaluate";
    case Phase::reduce:
      return "reduce";
    case Phase::update:
      return "update";
  }
  WEFT_CHECK(false, "phase {}", static_cast<int>(phase));
}

std::string_view name_of(Lane lane) {
  switch (lane) {
    case Lane::compute:
      return "compute";
    case Lane::exchange:
      return "exchange";
    case Lane::tensor:
      return "tensor";
    case Lane::gather:
      return "gather";
    case Lane::reduce:
      return "reduce";
    case Lane::pipe:
      return "pipe";
    case Lane::update:
      return "update";
  }
  WEFT_CHECK(false, "lane {}", static_cast<int>(lane));
}

std::string_view name_of(CollectiveKind kind) {
  switch (kind) {
    case CollectiveKind::all_to_all:
      return "all_to_all";
    case CollectiveKind::all_reduce:
      return "all_reduce";
  }
  WEFT_CHECK(false, "collective {}", static_cast<int>(kind));
}

const PieceCode& Piece::code(Phase phase) const {
  switch (phase) {
    case Phase::forward:
      return forward;
    case Phase::backward:
      return backward;
    case Phase::weight_gradient:
      return weight_gradient;
    case Phase::evaluate:
      return evaluate ? evaluate : forward;
    case Phase::reduce:
      return reduce;
    case Phase::update:
      return update;
  }
  WEFT_CHECK(false, "phase {}", static_cast<int>(phase));
}

namespace {

ValueId add_layer(ModuleBuilder& b, Symbol symbol, int physical, ValueId x) {
  switch (symbol) {
    case Symbol::attention:
      return add_attention(b, b.config().attention_of(physical), x);
    case Symbol::mlp:
      return add_mlp(b, b.config().mlp, x);
    case Symbol::experts:
      return add_experts(b, b.config().experts, x);
    case Symbol::mamba:
    case Symbol::gated_delta:
    case Symbol::latent_attention:
    case Symbol::sparse_attention:
      break;
  }
  throw UserError("the pattern asks for {} ('{}'), which this version does not train yet; use '*', '-' and 'E'",
                  name_of(symbol), letter(symbol));
}

}  // namespace

Module build_module(const ModelConfig& config, const ModuleOptions& options) {
  check_config(config);
  const Pattern pattern = parse_pattern(config.pattern);
  if (pattern.mtp_depths > 0)
    throw UserError("the pattern '{}' has a multi-token prediction part ('/{}'), which this version does not train yet",
                    config.pattern, pattern.mtp);
  ModuleBuilder b(config, options);
  Module& m = b.module();
  m.tokens = b.value({"tokens", ValueKind::input, DType::i32, {b.tokens()}});
  m.labels = b.value({"labels", ValueKind::input, DType::i32, {b.tokens()}});
  m.loss = b.value({"loss", ValueKind::step, b.accumulate(), {1}});
  m.step_values = b.value({"step_values", ValueKind::step, DType::f64, {StepValues::count}});

  ValueId x = add_embedding(b);
  for (const Segment& segment : pattern.segments)
    for (const Unit& unit : units_of(segment)) {
      b.next_unit();
      for (const PatternLayer& layer : unit.layers)
        for (std::size_t i = 0; i < layer.symbols.size(); ++i) {
          b.enter(0, layer.physical[i], fmt::format("main.{}{}", layer.physical[i], letter(layer.symbols[i])));
          x = add_layer(b, layer.symbols[i], layer.physical[i], x);
        }
    }
  x = add_final_norm(b, x);

  ParameterValues head{m.parameter_values[0], m.gradient_values[0]};  // the embedding's
  if (!config.tied_embeddings) {
    b.enter(0, -1, "head");
    const Shape shape{config.embedding_rows(), config.hidden};
    head = b.parameter("weight", shape, {b.part(Role::head, shape, b.matrix_init())});
  }
  add_head(b, x, head);
  ++m.units;  // units are numbered from 1 by next_unit; unit 0 is the step's own
  return b.take();
}

}  // namespace weft
