#include "weft/model/build_module.h"

#include <algorithm>
#include <numeric>

#include <fmt/format.h>

#include "weft/base/error.h"
#include "weft/device/operations/optimizer.h"
#include "weft/model/context_checks.h"
#include "weft/model/layers/layers.h"
#include "weft/model/layers/split_vocabulary.h"
#include "weft/model/sharding.h"
#include "weft/model/tensor_checks.h"

namespace weft {

namespace {

ValueId add_layer(ModuleBuilder& b, Symbol symbol, int depth, int physical, ValueId x) {
  switch (symbol) {
    case Symbol::attention:
      return add_attention(b, b.config().attention_of(physical, depth), x);
    case Symbol::latent_attention:
      return add_latent_attention(b, b.config().latent_attention, false, x);
    case Symbol::sparse_attention:
      return add_latent_attention(b, b.config().latent_attention, true, x);
    case Symbol::mlp:
      return add_mlp(b, b.config().mlp, x);
    case Symbol::experts:
      return add_experts(b, b.config().experts, x);
    case Symbol::mamba:
      return add_mamba(b, b.config().mamba, x);
    case Symbol::gated_delta:
      return add_delta_net(b, b.config().delta_net, x);
  }
  WEFT_CHECK(false, "symbol {}", static_cast<int>(symbol));
}

// The layers of a segment, or of an MTP depth. part: its number among both.
ValueId add_units(ModuleBuilder& b, const std::vector<Unit>& units, int depth, int part, ValueId x) {
  const std::string name = depth == 0 ? "main" : fmt::format("mtp{}", depth);
  int item = 0;
  for (const Unit& unit : units) {
    b.next_unit();
    for (const PatternLayer& layer : unit.layers) {
      for (std::size_t i = 0; i < layer.symbols.size(); ++i) {
        b.enter(depth, layer.physical[i], fmt::format("{}.{}{}", name, layer.physical[i], letter(layer.symbols[i])),
                {part, item});
        x = add_layer(b, layer.symbols[i], depth, layer.physical[i], x);
      }
      ++item;
    }
  }
  return x;
}

// The hidden state of every depth after its final norm, beginning with the main part's.
std::vector<ValueId> add_mtp_depths(ModuleBuilder& b, const Pattern& pattern, ParameterValues embedding, ValueId h) {
  Module& m = b.module();
  std::vector<ValueId> hidden{h};
  if (pattern.mtp_depths == 0) return hidden;
  for (int depth = 1; depth <= pattern.mtp_depths; ++depth) {
    Value loss{fmt::format("mtp{}.loss", depth), ValueKind::step, b.accumulate(), {1}};
    loss.read_by_host = true;
    loss.summed_over = b.summed_over_data();
    m.mtp_losses.push_back(b.value(std::move(loss)));
    ValueId x = add_mtp_input(b, depth, hidden.back(), embedding);
    const int part = static_cast<int>(pattern.segments.size()) + depth - 1;
    x = add_units(b, units_of(std::span(pattern.mtp_layers)), depth, part, x);
    hidden.push_back(add_final_norm(b, x, depth));
  }
  // All heads come last, so that in every order a weight that is both embedding and head gets the contributions of one
  // micro-batch before those of the next.
  b.next_unit();
  return hidden;
}

std::vector<ExpertLayer> expert_layers_of(const Pattern& pattern) {
  std::vector<ExpertLayer> found;
  const auto add = [&](const std::vector<PatternLayer>& layers, int depth) {
    for (const PatternLayer& layer : layers)
      for (std::size_t i = 0; i < layer.symbols.size(); ++i)
        if (layer.symbols[i] == Symbol::experts) found.push_back({depth, layer.physical[i]});
  };
  for (const Segment& segment : pattern.segments) add(segment.layers, 0);
  for (int depth = 1; depth <= pattern.mtp_depths; ++depth) add(pattern.mtp_layers, depth);
  return found;
}

// Every rank holds the same number of experts.
void check_expert_ranks(std::int64_t experts, std::int64_t ranks) {
  if (experts % ranks == 0) return;
  // A divisor of the requested ranks also divides the ranks of the run.
  throw UserError("`expert_ranks` {}: must divide the {} experts of a layer; use {}", ranks, experts,
                  std::gcd(ranks, experts));
}

// The layers of the stage that has this rank.
class Stage {
 public:
  Stage(ModuleBuilder& b, const Pattern& pattern)
      : b_(b), m_(b.module()), pattern_(pattern), layout_(b.options().layout) {}

  void add() {
    const ModelConfig& config = b_.config();
    const bool on_both_ends = several() && (config.tied_embeddings || pattern_.mtp_depths > 0);
    ParameterValues embedding;
    if (first() || (last() && on_both_ends)) embedding = add_embedding_weight(b_, on_both_ends);
    ValueId x;
    if (several()) {
      for (int v = 0; v < pattern_.virtual_stages(); ++v)
        x = add_chunk(pattern_.segment(layout_.stage(), v), embedding);
    } else {
      b_.begin_chunk(0);
      x = add_embedding(b_, embedding);
      for (const Segment& segment : pattern_.segments) x = add_units(b_, units_of(segment), 0, segment.index, x);
    }
    if (last()) add_end(embedding, x);
    if (several()) add_stage_sums();
  }

  bool several() const { return layout_.stage_count() > 1; }
  bool first() const { return layout_.stage() == 0; }
  bool last() const { return layout_.stage() == layout_.stage_count() - 1; }

 private:
  ValueId add_chunk(const Segment& segment, ParameterValues embedding) {
    b_.begin_chunk(segment.index);
    Chunk chunk = m_.chunks.back();
    ValueId x;
    if (segment.index == 0) {
      x = add_embedding(b_, embedding);
    } else {
      x = chunk.in = b_.value({fmt::format("segment{}.x", segment.index),
                               ValueKind::activation,
                               b_.compute(),
                               {b_.stream_tokens(), b_.config().hidden}});
      chunk.d_in = b_.gradient_of(x);
    }
    x = add_units(b_, units_of(segment), 0, segment.index, x);
    if (segment.index < m_.segments - 1) {
      chunk.out = x;
      chunk.d_out = b_.gradient_of(x);
    }
    m_.chunks.back() = chunk;
    return x;
  }

  // Final norm, MTP and heads.
  void add_end(ParameterValues embedding, ValueId x) {
    const std::vector<ValueId> hidden = add_mtp_depths(b_, pattern_, embedding, add_final_norm(b_, x));
    ParameterValues head = embedding;
    if (!b_.config().tied_embeddings) {
      b_.enter(0, -1, "head");
      head = add_vocabulary_weight(b_, Role::head);
    }
    for (std::size_t depth = 0; depth < hidden.size(); ++depth)
      add_head(b_, hidden[depth], head, static_cast<int>(depth));
  }

  // Every stage knows the losses of all, and so whether the step is finite.
  void add_stage_sums() {
    m_.loss = all_stages(m_.loss, "loss", b_.accumulate(), {1});
    m_.mtp_losses.resize(static_cast<std::size_t>(pattern_.mtp_depths));
    for (std::size_t d = 0; d < m_.mtp_losses.size(); ++d)
      m_.mtp_losses[d] = all_stages(m_.mtp_losses[d], fmt::format("mtp{}.loss", d + 1), b_.accumulate(), {1});
    const ModelConfig& c = b_.config();
    if (const std::int64_t routers = std::ssize(m_.expert_layers); routers > 0 && c.experts.balance.any_loss())
      m_.router_losses = all_stages(m_.router_losses, "router_losses", DType::f64, {routers, router_loss_count});
    if (pattern_.counts.at(Symbol::sparse_attention) > 0 && c.latent_attention.indexer.loss_factor > 0)
      m_.indexer_loss = all_stages(m_.indexer_loss, "indexer_loss", b_.accumulate(), {1});
  }

  ValueId all_stages(ValueId here, const std::string& name, DType dtype, const Shape& shape) {
    if (!here.valid()) {
      here = b_.value({name, ValueKind::step, dtype, shape});
      m_.values[here.index()].given_by_host = true;
    }
    Value all{"all_stages(" + name + ")", ValueKind::step, dtype, shape};
    all.read_by_host = true;
    all.summed_over = layout_.stages();
    m_.stage_sums.push_back({here, b_.value(std::move(all))});
    return m_.stage_sums.back().all;
  }

  ModuleBuilder& b_;
  Module& m_;
  const Pattern& pattern_;
  const Layout& layout_;
};

}  // namespace

Module build_module(const ModelConfig& config, const ModuleOptions& options) {
  check_config(config);
  SplitOptions split = options.split;
  split.pp = options.layout.stage_count();
  const Pattern pattern = parse_pattern(config.pattern, split);
  if (pattern.counts.at(Symbol::experts) > 0)
    check_expert_ranks(config.experts.experts, options.layout.size_of(options.layout.expert_ranks()));
  check_tensor_ranks(config, pattern, options);
  check_context_ranks(config, pattern, options);
  ModuleBuilder b(config, options);
  Module& m = b.module();
  m.length = options.length;
  m.expert_layers = expert_layers_of(pattern);
  Stage stage(b, pattern);
  m.segments = stage.several() ? static_cast<int>(pattern.segments.size()) : 1;
  if (stage.first() || (stage.last() && pattern.mtp_depths > 0))
    m.tokens = b.value({"tokens", ValueKind::input, DType::i32, {b.tokens()}});
  if (stage.last()) m.labels = b.value({"labels", ValueKind::input, DType::i32, {b.tokens()}});
  const bool context = b.context_ranks().divide(), own_positions = options.packing.reset_positions;
  const auto of_all = [&](const char* name) { return b.value({name, ValueKind::input, DType::i32, {b.all_tokens()}}); };
  if (options.packing.separate) m.boundaries = of_all("boundaries");
  if (own_positions || context) m.positions = b.value({"positions", ValueKind::input, DType::i32, {b.tokens()}});
  if (own_positions && context) m.all_positions = of_all("all_positions");
  if (const std::int64_t neighbours = options.layout.size_of(options.layout.head_ranks()); neighbours > 1)
    m.neighbour_positions = b.value({"neighbour_positions", ValueKind::input, DType::i32, {b.tokens() * neighbours}});
  for (int depth = 1; context && depth <= pattern.mtp_depths; ++depth) {
    const auto later = [&](const char* name) {
      return b.value({fmt::format("mtp{}.{}", depth, name), ValueKind::input, DType::i32, {b.tokens()}});
    };
    m.later_tokens.push_back(later("tokens"));
    m.later_labels.push_back(later("labels"));
  }
  m.loss_scales = b.value({"loss_scales", ValueKind::input, DType::f64, {1 + pattern.mtp_depths}});
  if (stage.last()) {
    m.loss = b.value({"loss", ValueKind::step, b.accumulate(), {1}});
    m.values[m.loss.index()].summed_over = b.summed_over_data();
  }
  m.step_values = b.value({"step_values", ValueKind::step, DType::f64, {StepValues::count}});
  m.values[m.step_values.index()].given_by_host = true;

  stage.add();
  ++m.units;  // units are numbered from 1 by next_unit; unit 0 is the step's own
  shard_parameters(m, options.precision, options.sharding, options.shard_over_instances);
  return b.take();
}

}  // namespace weft
