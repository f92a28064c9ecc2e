// config.json of a Hugging Face family, written from a model's config: the inverse of hf_config.h and of the families'
// readers. A writer writes what the family has keys for. Reading it again tells whether the family has such a model (hf_shape.h).
#pragma once

#include <string>
#include <vector>

#include "weft/base/json.h"
#include "weft/model/config.h"

namespace weft {

// The symbols of the main part, in order, without brackets and stages: "*-*E".
std::string main_symbols(const ModelConfig& config);
// The main part as layers of two symbols: whether the second of each is E.
std::vector<bool> sparse_layers(const ModelConfig& config);
int mtp_depths(const ModelConfig& config);
// The first attention layer's, or without one the model's.
const AttentionSpec& first_attention(const ModelConfig& config);

// Parts that families share; keys are those of `llama`.

// vocab_size, hidden_size, tie_word_embeddings, initializer_range, max_position_embeddings, ids of special tokens.
void write_model_sizes(const ModelConfig& config, Json& json);
void write_layer_pairs(const ModelConfig& config, Json& json);  // num_hidden_layers, of two symbols each
// num_attention_heads, num_key_value_heads, head_dim, and the rotary embedding.
void write_attention(const AttentionSpec& attention, Json& json);
void write_rope(const RopeSpec& rope, Json& json);  // as transformers 4 and 5 read it
// decoder_sparse_step, mlp_only_layers, intermediate_size: which layers have experts, and the others' width.
void write_sparse_layers(const ModelConfig& config, Json& json);
// num_experts_per_tok, norm_topk_prob.
void write_router(const RouterSpec& router, Json& json);

}  // namespace weft
