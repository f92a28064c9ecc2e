// config.json of a Hugging Face model, read key by key. Every complaint names the file and the key.
//
// null counts as absent, as in transformers. What a config asks for and Weft does not do is an error; keys that the
// family's model does not look at are ignored, as Hugging Face ignores them.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "weft/base/json.h"
#include "weft/model/config.h"

namespace weft {

class ConfigReader {
 public:
  // The JSON must outlive the reader.
  ConfigReader(const Json& json, std::string where);

  const std::string& where() const { return where_; }
  bool has(const std::string& key) const;       // there, and not null
  bool mentions(const std::string& key) const;  // there, perhaps null

  // Without `otherwise` the key must be there.
  std::int64_t integer(const std::string& key, std::int64_t least = 1, std::int64_t most = max_integer) const;
  std::int64_t integer_or(const std::string& key, std::int64_t otherwise, std::int64_t least = 1,
                          std::int64_t most = max_integer) const;
  // Neither it nor its negative may be above `most`.
  enum class Sign : std::uint8_t { any, not_negative, positive };
  double number(const std::string& key, Sign sign = Sign::any, double most = max_number) const;
  double number_or(const std::string& key, double otherwise, Sign sign = Sign::any, double most = max_number) const;
  bool flag_or(const std::string& key, bool otherwise) const;
  std::string text(const std::string& key) const;
  std::string text_or(const std::string& key, const std::string& otherwise) const;
  std::vector<std::int64_t> integers_or_none(const std::string& key) const;
  std::vector<std::string> texts_or_none(const std::string& key) const;
  // A list of two numbers; infinity is {"__float__": "Infinity"}.
  std::pair<double, double> range_or(const std::string& key, std::pair<double, double> otherwise) const;
  bool holds_objects(const std::string& key) const;  // an object of objects
  ConfigReader object(const std::string& key) const;

  // UserError: "FILE: KEY is VALUE: why".
  [[noreturn]] void refuse(const std::string& key, const std::string& why) const;
  [[noreturn]] void refuse_missing(const std::string& key) const;

  static constexpr std::int64_t max_integer = (std::int64_t{1} << 31) - 1;
  static constexpr std::int64_t max_experts = 1 << 16;  // of a layer, as check_config has it
  static constexpr std::int64_t max_depths = 100;       // of MTP
  static constexpr double max_number = 1e6;

 private:
  const Json& at(const std::string& key) const;

  const Json* json_;
  std::string where_;
};

// Parts that families share. Names of keys are those of `llama`; a family reads what differs by itself.

// Things Weft does not do for any family: quantised weights, dropout.
void refuse_unsupported(const ConfigReader& config);
// vocab_size, hidden_size, rms_norm_eps, tie_word_embeddings, initializer_range, max_position_embeddings.
ModelConfig read_model_sizes(const ConfigReader& config, double default_epsilon);
std::int64_t read_layers(const ConfigReader& config);  // num_hidden_layers
// num_attention_heads, num_key_value_heads, head_dim, attention_bias and the rotary embedding.
// default_fraction: of a head that turns where the config has none; 1: models of this family turn whole heads.
AttentionSpec read_attention(const ConfigReader& config, double default_theta, double default_fraction = 1);
// rope_parameters (5.x), or rope_theta and rope_scaling (4.x).
RopeSpec read_rope(const ConfigReader& config, double default_theta, double default_fraction = 1);
// hidden_act of a gated MLP: silu.
ActivationSpec read_gated_activation(const ConfigReader& config);
// num_experts or num_local_experts; num_experts_per_tok. Softmax over all experts before the choice.
ExpertsSpec read_experts(const ConfigReader& config, const std::string& ffn_key, bool normalise);

}  // namespace weft
