#include <algorithm>
#include <array>
#include <cmath>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "weft/checkpoint/hf_family.h"

namespace weft {
namespace {

constexpr std::array<Role, 1> value_rows = {Role::v_up};

// The same for both kinds of attention.
template <Symbol symbol>
constexpr std::array<NameRule, 9> latent_names = {{
    {symbol, "input_layernorm.weight", Role::norm},
    {symbol, "self_attn.q_proj.weight", Role::q},
    {symbol, "self_attn.q_a_proj.weight", Role::q_down},
    {symbol, "self_attn.q_a_layernorm.weight", Role::q_latent_norm},
    {symbol, "self_attn.q_b_proj.weight", Role::q_up},
    {symbol, "self_attn.kv_a_proj_with_mqa.weight", Role::kv_down},
    {symbol, "self_attn.kv_a_layernorm.weight", Role::kv_latent_norm},
    {.symbol = symbol,
     .name = "self_attn.kv_b_proj.weight",
     .role = Role::k_up,
     .rest = value_rows,
     .turns = Turns::heads},
    {symbol, "self_attn.o_proj.weight", Role::output},
}};

constexpr std::array<NameRule, 5> indexer_names = {{
    {Symbol::sparse_attention, "self_attn.indexer.wq_b.weight", Role::indexer_q},
    {Symbol::sparse_attention, "self_attn.indexer.wk.weight", Role::indexer_k},
    {Symbol::sparse_attention, "self_attn.indexer.weights_proj.weight", Role::indexer_weights},
    {Symbol::sparse_attention, "self_attn.indexer.k_norm.weight", Role::indexer_norm},
    {Symbol::sparse_attention, "self_attn.indexer.k_norm.bias", Role::indexer_norm_bias},
}};

constexpr std::array<NameRule, 4> expert_names = {{
    {Symbol::experts, "mlp.gate.e_score_correction_bias", Role::expert_bias},
    {Symbol::experts, "mlp.shared_experts.gate_proj.weight", Role::shared_gate},
    {Symbol::experts, "mlp.shared_experts.up_proj.weight", Role::shared_up},
    {Symbol::experts, "mlp.shared_experts.down_proj.weight", Role::shared_down},
}};

constexpr std::array<NameRule, 6> mtp_names = {{
    {{}, "model.layers.{F}.enorm.weight", Role::mtp_embedding_norm},
    {{}, "model.layers.{F}.hnorm.weight", Role::mtp_hidden_norm},
    {{}, "model.layers.{F}.eh_proj.weight", Role::mtp_projection},
    {{}, "model.layers.{F}.shared_head.norm.weight", Role::final_norm},
    {{}, "model.layers.{F}.embed_tokens.weight", Role::embedding},
    {{}, "model.layers.{F}.shared_head.head.weight", Role::head},
}};

std::int64_t read_mtp_depths(const ConfigReader& config) {
  return config.integer_or("num_nextn_predict_layers", 0, 0, ConfigReader::max_depths);
}

LatentAttentionSpec read_latent_attention(const ConfigReader& config) {
  LatentAttentionSpec spec;
  spec.heads = config.integer("num_attention_heads");
  if (config.integer_or("num_key_value_heads", spec.heads) != spec.heads)
    config.refuse("num_key_value_heads", "in multi-latent attention every head has its own keys and values");
  spec.q_rank = config.mentions("q_lora_rank") ? config.integer_or("q_lora_rank", 0) : 1536;
  spec.kv_rank = config.integer_or("kv_lora_rank", 512);
  spec.head_dim = config.integer_or("qk_nope_head_dim", 128);
  spec.rotary_dim = config.integer_or("qk_rope_head_dim", 64);
  spec.value_dim = config.integer_or("v_head_dim", 128);
  if (spec.rotary_dim % 2 != 0) config.refuse("qk_rope_head_dim", "elements are rotated in pairs");
  if (config.integer_or("qk_head_dim", spec.head_dim + spec.rotary_dim) != spec.head_dim + spec.rotary_dim)
    config.refuse("qk_head_dim", "it is qk_nope_head_dim + qk_rope_head_dim");
  if (config.flag_or("attention_bias", false))
    config.refuse("attention_bias", "Weft supports multi-latent attention only without biases");
  spec.norm_epsilon = 1e-6;  // of the latents, whatever rms_norm_eps is
  spec.rope = read_rope(config, 10'000);
  spec.rope.style = config.flag_or("rope_interleave", true) ? RotaryStyle::interleaved : RotaryStyle::half_split;
  spec.scale = 1 / std::sqrt(static_cast<double>(spec.head_dim + spec.rotary_dim));
  if (spec.rope.scaling != RopeSpec::Scaling::none) {
    const ConfigReader rope = config.object(config.has("rope_scaling") ? "rope_scaling" : "rope_parameters");
    const double all = rope.number_or("mscale_all_dim", 0, ConfigReader::Sign::not_negative);
    // Hugging Face looks at the factor whatever the kind of scaling.
    const double factor = spec.rope.factor;
    const double mscale = all == 0 || factor <= 1 ? 1 : 0.1 * all * std::log(factor) + 1;
    spec.scale *= mscale * mscale;
  }
  return spec;
}

ExpertsSpec read_deepseek_experts(const ConfigReader& config) {
  ExpertsSpec experts;
  experts.experts = config.integer("n_routed_experts", 1, ConfigReader::max_experts);
  experts.ffn = config.integer("moe_intermediate_size");
  experts.shared_ffn = config.integer_or("n_shared_experts", 0, 0) * experts.ffn;
  experts.activation = read_gated_activation(config);
  experts.expert_bias = true;
  RouterSpec& router = experts.router;
  router.score = RouterSpec::Score::sigmoid;
  router.choose_first = false;
  router.normalise = config.flag_or("norm_topk_prob", true);
  router.scaling = config.number_or("routed_scaling_factor", 2.5, ConfigReader::Sign::positive);
  router.k = config.integer("num_experts_per_tok");
  router.groups = config.integer_or("n_group", 8);
  router.keep_groups = config.integer_or("topk_group", 4);
  router.group_best = 2;  // whatever k is
  if (experts.experts % router.groups != 0)
    config.refuse("n_group", fmt::format("it must divide the {} experts", experts.experts));
  const std::int64_t size = experts.experts / router.groups;
  if (router.keep_groups > router.groups || router.k > router.keep_groups * size)
    config.refuse("topk_group", fmt::format("{} groups of {} experts cannot give the {} to choose", router.keep_groups,
                                            size, router.k));
  if (router.groups > 1 && size < router.group_best)
    config.refuse("n_group", "a group's score is the sum of its two best, so it needs two experts");
  for (const auto& [key, only] : {std::pair("scoring_func", "sigmoid"), std::pair("topk_method", "noaux_tc")})
    if (config.text_or(key, only) != only) config.refuse(key, fmt::format("Weft supports only \"{}\" here", only));
  return experts;
}

// The first layers are dense.
std::string read_pattern(const ConfigReader& config, std::string_view attention) {
  const std::int64_t layers = read_layers(config), dense = config.integer_or("first_k_dense_replace", 3, 0);
  if (config.integer_or("moe_layer_freq", 1) != 1)
    config.refuse("moe_layer_freq", "every layer after the first_k_dense_replace dense ones has experts");
  const std::vector<std::string> kinds = config.texts_or_none("mlp_layer_types");  // 5.x lists it layer by layer
  if (!kinds.empty() && static_cast<std::int64_t>(kinds.size()) != layers)
    config.refuse("mlp_layer_types", "it must name one type per layer (num_hidden_layers)");
  std::string pattern;
  for (std::int64_t layer = 0; layer < layers; ++layer) {
    bool is_dense = layer < dense;
    if (!kinds.empty()) {
      const std::string& kind = kinds[static_cast<std::size_t>(layer)];
      if (kind != "dense" && kind != "sparse") config.refuse("mlp_layer_types", "layers are dense or sparse");
      is_dense = kind == "dense";
    }
    pattern += fmt::format("[{}{}]", attention, is_dense ? '-' : 'E');
  }
  return pattern;
}

ModelConfig read_deepseek(const ConfigReader& config, std::string_view attention) {
  ModelConfig model = read_model_sizes(config, 1e-6);
  model.pattern = read_pattern(config, attention);
  model.latent_attention = read_latent_attention(config);
  if (model.pattern.find('-') != std::string::npos) {
    model.mlp.ffn = config.integer("intermediate_size");
    model.mlp.activation = read_gated_activation(config);
  }
  if (model.pattern.find('E') != std::string::npos) model.experts = read_deepseek_experts(config);
  return model;
}

ModelConfig read_deepseek_v3(const ConfigReader& config) { return read_deepseek(config, "+"); }

ModelConfig read_deepseek_v32(const ConfigReader& config) {
  for (const std::string& type : config.texts_or_none("layer_types"))
    if (type != "deepseek_sparse_attention")
      config.refuse("layer_types", "every layer of this family has deepseek_sparse_attention");
  ModelConfig model = read_deepseek(config, "D");
  LatentAttentionSpec& latent = model.latent_attention;
  if (latent.q_rank == 0) config.refuse("q_lora_rank", "the indexer reads the queries' latent, so there must be one");
  latent.indexer.heads = config.integer_or("index_n_heads", 64);
  latent.indexer.dim = config.integer_or("index_head_dim", 128);
  latent.indexer.topk = config.integer_or("index_topk", 2048);
  if (latent.indexer.dim < latent.rotary_dim)
    config.refuse("index_head_dim", fmt::format("it holds the {} elements of qk_rope_head_dim", latent.rotary_dim));
  return model;
}

// The factor of mscale_all_dim that gives the scale of the logits; 0: they are not scaled beyond their width.
double mscale_all_dim(const LatentAttentionSpec& spec) {
  if (spec.scale == 0 || spec.rope.factor <= 1) return 0;
  const double mscale = std::sqrt(spec.scale * std::sqrt(static_cast<double>(spec.head_dim + spec.rotary_dim)));
  const double all = (mscale - 1) / (0.1 * std::log(spec.rope.factor));
  return std::abs(all) < 1e-12 ? 0 : all;
}

void write_deepseek_v3(const ModelConfig& config, Json& json) {
  write_model_sizes(config, json);
  write_layer_pairs(config, json);
  const LatentAttentionSpec& latent = config.latent_attention;
  json["num_attention_heads"] = json["num_key_value_heads"] = latent.heads;
  json["q_lora_rank"] = latent.q_rank > 0 ? Json(latent.q_rank) : Json(nullptr);
  json["kv_lora_rank"] = latent.kv_rank;
  json["qk_nope_head_dim"] = latent.head_dim;
  json["qk_rope_head_dim"] = latent.rotary_dim;
  json["qk_head_dim"] = latent.head_dim + latent.rotary_dim;
  json["head_dim"] = latent.rotary_dim;  // transformers' rotary embedding is that wide
  json["v_head_dim"] = latent.value_dim;
  json["attention_bias"] = false;
  json["rope_interleave"] = latent.rope.style == RotaryStyle::interleaved;
  write_rope(latent.rope, json);
  if (const double all = mscale_all_dim(latent); all != 0)
    for (const char* key : {"rope_scaling", "rope_parameters"}) json[key]["mscale_all_dim"] = all;
  const std::vector<bool> sparse = sparse_layers(config);
  const auto first = std::find(sparse.begin(), sparse.end(), true);
  json["first_k_dense_replace"] = first - sparse.begin();
  if (std::find(first, sparse.end(), false) != sparse.end()) {  // not the dense ones first
    json["mlp_layer_types"] = Json::array();
    for (const bool layer : sparse) json["mlp_layer_types"].push_back(layer ? "sparse" : "dense");
  }
  json["intermediate_size"] = config.mlp.ffn > 0 ? config.mlp.ffn : 4 * config.hidden;
  const ExpertsSpec& experts = config.experts;
  json["n_routed_experts"] = experts.experts;
  json["moe_intermediate_size"] = experts.ffn;
  json["n_shared_experts"] = experts.ffn > 0 ? experts.shared_ffn / experts.ffn : 0;
  write_router(experts.router, json);
  json["routed_scaling_factor"] = experts.router.scaling;
  json["n_group"] = experts.router.groups;
  json["topk_group"] = experts.router.keep_groups;
  json["scoring_func"] = "sigmoid";
  json["topk_method"] = "noaux_tc";
  json["num_nextn_predict_layers"] = mtp_depths(config);
  json["hidden_act"] = "silu";
  json["rms_norm_eps"] = config.norm_epsilon;
}

void write_deepseek_v32(const ModelConfig& config, Json& json) {
  write_deepseek_v3(config, json);
  const IndexerSpec& indexer = config.latent_attention.indexer;
  json["index_n_heads"] = indexer.heads;
  json["index_head_dim"] = indexer.dim;
  json["index_topk"] = indexer.topk;
}

}  // namespace

HuggingFaceFamily deepseek_v3_family() {
  return {.name = "deepseek_v3",
          .architecture = "DeepseekV3ForCausalLM",
          .layers = "[+-] and [+E]",
          .config = read_deepseek_v3,
          .write = write_deepseek_v3,
          .layer_prefix = "model.layers.{L}.",
          .names = {transformer_names(), latent_names<Symbol::latent_attention>, expert_names, gated_mlp_names()},
          .experts = experts_names(),
          .ignored = {".rotary_emb.inv_freq"},
          .mtp = MtpNames{mtp_names, "model.layers.{L}.", true, [](const ConfigReader&) { return std::string("[+E]"); },
                          read_mtp_depths}};
}

HuggingFaceFamily deepseek_v32_family() {
  HuggingFaceFamily family = deepseek_v3_family();
  family.name = "deepseek_v32";
  family.architecture = "DeepseekV32ForCausalLM";
  family.layers = "[D-] and [DE]";
  family.config = read_deepseek_v32;
  family.write = write_deepseek_v32;
  family.names = {transformer_names(), latent_names<Symbol::sparse_attention>, indexer_names, expert_names,
                  gated_mlp_names()};
  family.mtp->part = [](const ConfigReader&) { return std::string("[DE]"); };
  return family;
}

}  // namespace weft
