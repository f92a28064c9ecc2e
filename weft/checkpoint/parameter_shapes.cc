#include "weft/checkpoint/parameter_shapes.h"

#include "weft/base/error.h"

namespace weft {
namespace {

std::optional<Shape> shape_if(bool there, const Shape& shape) { return there ? std::optional(shape) : std::nullopt; }

std::optional<Shape> model_shape(const ModelConfig& config, Role role) {
  switch (role) {
    case Role::mtp_embedding_norm:
    case Role::mtp_hidden_norm:
      return Shape{config.hidden};
    case Role::mtp_projection:
      return Shape{config.hidden, 2 * config.hidden};
    case Role::embedding:
      return Shape{config.embedding_rows(), config.hidden};
    case Role::final_norm:
      return Shape{config.hidden};
    case Role::head:
      return shape_if(!config.tied_embeddings, {config.embedding_rows(), config.hidden});
    default:
      return {};
  }
}

std::optional<Shape> attention_shape(const AttentionSpec& spec, std::int64_t hidden, Role role) {
  const std::int64_t q = spec.heads * spec.head_dim, kv = spec.kv_heads * spec.head_dim;
  switch (role) {
    case Role::norm:
      return Shape{hidden};
    case Role::q:
      return Shape{q, hidden};
    case Role::k:
    case Role::v:
      return Shape{kv, hidden};
    case Role::output:
      return Shape{hidden, q};
    case Role::q_bias:
      return shape_if(spec.qkv_bias, {q});
    case Role::k_bias:
    case Role::v_bias:
      return shape_if(spec.qkv_bias, {kv});
    case Role::output_bias:
      return shape_if(spec.output_bias, {hidden});
    case Role::output_gate:
      return shape_if(spec.output_gate, {q, hidden});
    case Role::q_norm:
    case Role::k_norm:
      return shape_if(spec.qk_norm, {spec.head_dim});
    case Role::sinks:
      return shape_if(spec.sinks, {spec.heads});
    default:
      return {};
  }
}

std::optional<Shape> latent_shape(const LatentAttentionSpec& spec, std::int64_t hidden, Role role) {
  const std::int64_t q = spec.heads * (spec.head_dim + spec.rotary_dim);
  const bool low_rank = spec.q_rank > 0;
  switch (role) {
    case Role::norm:
      return Shape{hidden};
    case Role::q:
      return shape_if(!low_rank, {q, hidden});
    case Role::q_down:
      return shape_if(low_rank, {spec.q_rank, hidden});
    case Role::q_latent_norm:
      return shape_if(low_rank, {spec.q_rank});
    case Role::q_up:
      return shape_if(low_rank, {q, spec.q_rank});
    case Role::kv_down:
      return Shape{spec.kv_rank + spec.rotary_dim, hidden};
    case Role::kv_latent_norm:
      return Shape{spec.kv_rank};
    case Role::k_up:
      return Shape{spec.heads * spec.head_dim, spec.kv_rank};
    case Role::v_up:
      return Shape{spec.heads * spec.value_dim, spec.kv_rank};
    case Role::output:
      return Shape{hidden, spec.heads * spec.value_dim};
    case Role::indexer_q:
      return Shape{spec.indexer.heads * spec.indexer.dim, spec.q_rank};
    case Role::indexer_k:
      return Shape{spec.indexer.dim, hidden};
    case Role::indexer_weights:
      return Shape{spec.indexer.heads, hidden};
    case Role::indexer_norm:
    case Role::indexer_norm_bias:
      return Shape{spec.indexer.dim};
    default:
      return {};
  }
}

// Of an MLP, and of one expert.
std::optional<Shape> mlp_shape(const MlpSpec& spec, std::int64_t hidden, Role role) {
  const bool gated = spec.activation.gated();
  switch (role) {
    case Role::norm:
      return Shape{hidden};
    case Role::gate:
      return shape_if(gated, {spec.ffn, hidden});
    case Role::up:
      return Shape{spec.ffn, hidden};
    case Role::down:
      return Shape{hidden, spec.ffn};
    case Role::gate_bias:
      return shape_if(gated && spec.bias, {spec.ffn});
    case Role::up_bias:
      return shape_if(spec.bias, {spec.ffn});
    case Role::down_bias:
      return shape_if(spec.bias, {hidden});
    default:
      return {};
  }
}

// What a role of the shared expert is to an MLP.
std::optional<Role> shared_role(Role role) {
  switch (role) {
    case Role::shared_gate:
      return Role::gate;
    case Role::shared_up:
      return Role::up;
    case Role::shared_down:
      return Role::down;
    default:
      return {};
  }
}

}  // namespace

std::optional<Shape> parameter_shape(const ModelConfig& config, std::optional<Symbol> symbol, int physical, Role role) {
  if (!symbol) return model_shape(config, role);
  switch (*symbol) {
    case Symbol::attention:
      return attention_shape(config.attention_of(physical), config.hidden, role);
    case Symbol::latent_attention:
    case Symbol::sparse_attention:
      return latent_shape(config.latent_attention, config.hidden, role);
    case Symbol::mamba:
      return mamba_shape(config.mamba, config.hidden, role);
    case Symbol::gated_delta:
      return delta_net_shape(config.delta_net, config.hidden, role);
    case Symbol::mlp:
      return mlp_shape(config.mlp, config.hidden, role);
    case Symbol::experts:
      if (role == Role::expert_bias) return shape_if(config.experts.expert_bias, {config.experts.experts});
      if (const std::optional<Role> of = shared_role(role))
        return config.experts.shared_ffn == 0
                   ? std::nullopt
                   : mlp_shape({config.experts.shared_ffn, config.experts.activation, false}, config.hidden, *of);
      if (role == Role::shared_expert_gate) return shape_if(config.experts.shared_gate, {1, config.hidden});
      if (role == Role::router) return Shape{config.experts.experts, config.hidden};
      if (role == Role::router_bias) return shape_if(config.experts.router_bias, {config.experts.experts});
      if (role == Role::latent_down) return shape_if(config.experts.latent > 0, {config.experts.latent, config.hidden});
      if (role == Role::latent_up) return shape_if(config.experts.latent > 0, {config.hidden, config.experts.latent});
      if (role == Role::norm) return Shape{config.hidden};
      return mlp_shape({config.experts.ffn, config.experts.activation, config.experts.bias},
                       config.experts.latent > 0 ? config.experts.latent : config.hidden, role);
    default:
      WEFT_CHECK(false, "no shapes of '{}' yet", letter(*symbol));
  }
}

}  // namespace weft
