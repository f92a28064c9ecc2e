#include "weft/checkpoint/hf_config_writer.h"

#include <algorithm>
#include <cmath>

#include <nlohmann/json.hpp>

namespace weft {

std::string main_symbols(const ModelConfig& config) {
  std::string symbols;
  for (const Segment& segment : parse_pattern(config.pattern).segments)
    for (const PatternLayer& layer : segment.layers) symbols += layer.letters();
  return symbols;
}

std::vector<bool> sparse_layers(const ModelConfig& config) {
  const std::string symbols = main_symbols(config);
  std::vector<bool> sparse;
  for (std::size_t i = 1; i < symbols.size(); i += 2) sparse.push_back(symbols[i] == letter(Symbol::experts));
  return sparse;
}

int mtp_depths(const ModelConfig& config) { return parse_pattern(config.pattern).mtp_depths; }

const AttentionSpec& first_attention(const ModelConfig& config) {
  const std::size_t at = main_symbols(config).find(letter(Symbol::attention));
  return at == std::string::npos ? config.attention : config.attention_of(static_cast<int>(at));
}

void write_model_sizes(const ModelConfig& config, Json& json) {
  json["vocab_size"] = config.vocabulary;
  json["hidden_size"] = config.hidden;
  json["tie_word_embeddings"] = config.tied_embeddings;
  json["initializer_range"] = config.init_std;
  if (config.max_positions > 0) json["max_position_embeddings"] = config.max_positions;
  // The families' defaults are ids of their own vocabularies.
  for (const char* token : {"bos_token_id", "eos_token_id", "pad_token_id"}) json[token] = nullptr;
}

void write_layer_pairs(const ModelConfig& config, Json& json) {
  json["num_hidden_layers"] = std::max<std::size_t>(1, sparse_layers(config).size());
}

void write_attention(const AttentionSpec& attention, Json& json) {
  json["num_attention_heads"] = attention.heads;
  json["num_key_value_heads"] = attention.kv_heads;
  json["head_dim"] = attention.head_dim;
  write_rope(attention.rope, json);
}

void write_rope(const RopeSpec& rope, Json& json) {
  Json scaling = Json::object();
  switch (rope.scaling) {
    case RopeSpec::Scaling::none:
      scaling["rope_type"] = "default";
      break;
    case RopeSpec::Scaling::linear:
      scaling["rope_type"] = "linear";
      scaling["factor"] = rope.factor;
      break;
    case RopeSpec::Scaling::llama3:
      scaling["rope_type"] = "llama3";
      scaling["factor"] = rope.factor;
      scaling["low_freq_factor"] = rope.low_frequency;
      scaling["high_freq_factor"] = rope.high_frequency;
      scaling["original_max_position_embeddings"] = std::llround(rope.original_positions);
      break;
    case RopeSpec::Scaling::yarn:
      scaling["rope_type"] = "yarn";
      scaling["factor"] = rope.factor;
      scaling["beta_fast"] = rope.beta_fast;
      scaling["beta_slow"] = rope.beta_slow;
      scaling["truncate"] = rope.truncate;
      scaling["attention_factor"] = rope.magnitude;
      scaling["original_max_position_embeddings"] = std::llround(rope.original_positions);
      break;
  }
  json["rope_theta"] = rope.base;
  if (rope.scaling != RopeSpec::Scaling::none) json["rope_scaling"] = scaling;
  if (rope.fraction != 1) json["partial_rotary_factor"] = rope.fraction;
  json["rope_parameters"] = scaling;
  json["rope_parameters"]["rope_theta"] = rope.base;
  if (rope.fraction != 1) json["rope_parameters"]["partial_rotary_factor"] = rope.fraction;
}

void write_sparse_layers(const ModelConfig& config, Json& json) {
  const std::vector<bool> sparse = sparse_layers(config);
  json["decoder_sparse_step"] = 1;
  json["mlp_only_layers"] = Json::array();
  for (std::size_t layer = 0; layer < sparse.size(); ++layer)
    if (!sparse[layer]) json["mlp_only_layers"].push_back(layer);
  // Without any, transformers wants a number all the same.
  json["intermediate_size"] = config.mlp.ffn > 0 ? config.mlp.ffn : 4 * config.hidden;
}

void write_router(const RouterSpec& router, Json& json) {
  json["num_experts_per_tok"] = router.k;
  // A softmax over the chosen experts is one over all, normalised.
  json["norm_topk_prob"] = router.normalise || router.choose_first;
}

}  // namespace weft
