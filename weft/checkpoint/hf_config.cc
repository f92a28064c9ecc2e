#include "weft/checkpoint/hf_config.h"

#include <cmath>
#include <limits>

#include <nlohmann/json.hpp>

#include "weft/base/error.h"

namespace weft {
namespace {

std::string shown(const Json& value) {
  std::string text = value.dump(-1, ' ', false, Json::error_handler_t::replace);
  return text.size() > 80 ? text.substr(0, 77) + "..." : text;
}

}  // namespace

ConfigReader::ConfigReader(const Json& json, std::string where) : json_(&json), where_(std::move(where)) {
  if (!json.is_object()) throw UserError("{}: must be an object, is {}", where_, shown(json));
}

bool ConfigReader::mentions(const std::string& key) const { return json_->contains(key); }

bool ConfigReader::has(const std::string& key) const { return mentions(key) && !(*json_)[key].is_null(); }

const Json& ConfigReader::at(const std::string& key) const {
  if (!has(key)) refuse_missing(key);
  return (*json_)[key];
}

std::int64_t ConfigReader::integer(const std::string& key, std::int64_t least, std::int64_t most) const {
  const Json& value = at(key);
  if (!value.is_number_integer()) refuse(key, "it must be a whole number");
  // An unsigned number beyond 63 bits is beyond `most` too.
  const bool huge = value.is_number_unsigned() && value.get<std::uint64_t>() > static_cast<std::uint64_t>(most);
  if (huge || value.get<std::int64_t>() > most) refuse(key, fmt::format("it must be at most {}", most));
  if (value.get<std::int64_t>() < least) refuse(key, fmt::format("it must be at least {}", least));
  return value.get<std::int64_t>();
}

std::int64_t ConfigReader::integer_or(const std::string& key, std::int64_t otherwise, std::int64_t least,
                                      std::int64_t most) const {
  return has(key) ? integer(key, least, most) : otherwise;
}

double ConfigReader::number(const std::string& key, Sign sign, double most) const {
  const Json& value = at(key);
  if (!value.is_number() || !std::isfinite(value.get<double>())) refuse(key, "it must be a number");
  const double number = value.get<double>();
  if (sign == Sign::positive && number <= 0) refuse(key, "it must be above 0");
  if (sign == Sign::not_negative && number < 0) refuse(key, "it must not be negative");
  if (std::abs(number) > most) refuse(key, fmt::format("its magnitude must be at most {}", most));
  return number;
}

double ConfigReader::number_or(const std::string& key, double otherwise, Sign sign, double most) const {
  return has(key) ? number(key, sign, most) : otherwise;
}

bool ConfigReader::flag_or(const std::string& key, bool otherwise) const {
  if (!has(key)) return otherwise;
  const Json& value = at(key);
  if (!value.is_boolean()) refuse(key, "it must be true or false");
  return value.get<bool>();
}

std::string ConfigReader::text(const std::string& key) const {
  const Json& value = at(key);
  if (!value.is_string()) refuse(key, "it must be text");
  return value.get<std::string>();
}

std::string ConfigReader::text_or(const std::string& key, const std::string& otherwise) const {
  return has(key) ? text(key) : otherwise;
}

std::vector<std::int64_t> ConfigReader::integers_or_none(const std::string& key) const {
  if (!has(key)) return {};
  const Json& value = at(key);
  if (!value.is_array()) refuse(key, "it must be a list of whole numbers");
  std::vector<std::int64_t> integers;
  for (const Json& element : value) {
    if (!element.is_number_integer()) refuse(key, "it must be a list of whole numbers");
    integers.push_back(element.get<std::int64_t>());
  }
  return integers;
}

std::vector<std::string> ConfigReader::texts_or_none(const std::string& key) const {
  if (!has(key)) return {};
  const Json& value = at(key);
  if (!value.is_array()) refuse(key, "it must be a list of texts");
  std::vector<std::string> texts;
  for (const Json& element : value) {
    if (!element.is_string()) refuse(key, "it must be a list of texts");
    texts.push_back(element.get<std::string>());
  }
  return texts;
}

std::pair<double, double> ConfigReader::range_or(const std::string& key, std::pair<double, double> otherwise) const {
  if (!has(key)) return otherwise;
  const Json& value = at(key);
  const auto number_of = [&](const Json& element) {
    if (element.is_number()) return element.get<double>();
    if (element.is_object() && element.contains("__float__") && element["__float__"] == "Infinity")
      return std::numeric_limits<double>::infinity();
    refuse(key, "it must be a list of two numbers");
  };
  if (!value.is_array() || value.size() != 2) refuse(key, "it must be a list of two numbers");
  const std::pair<double, double> range{number_of(value[0]), number_of(value[1])};
  if (!(range.first <= range.second)) refuse(key, "the first number must not exceed the second");
  return range;
}

bool ConfigReader::holds_objects(const std::string& key) const {
  if (!has(key) || !at(key).is_object()) return false;
  for (const auto& [name, value] : at(key).items()) {
    if (value.is_object()) return true;
  }
  return false;
}

ConfigReader ConfigReader::object(const std::string& key) const {
  const Json& value = at(key);
  if (!value.is_object()) refuse(key, "it must be an object");
  return {value, fmt::format("{}: {}", where_, key)};
}

void ConfigReader::refuse(const std::string& key, const std::string& why) const {
  throw UserError("{}: '{}' is {}: {}", where_, key, mentions(key) ? shown((*json_)[key]) : "absent", why);
}

void ConfigReader::refuse_missing(const std::string& key) const { throw UserError("{}: lacks '{}'", where_, key); }

void refuse_unsupported(const ConfigReader& config) {
  if (config.has("quantization_config")) {
    config.refuse("quantization_config", "quantised weights are not read; save the model as bfloat16 or float32");
  }
  if (config.number_or("attention_dropout", 0) != 0) {
    config.refuse("attention_dropout", "Weft trains without dropout; set it to 0");
  }
}

ModelConfig read_model_sizes(const ConfigReader& config, double default_epsilon) {
  ModelConfig model;
  model.vocabulary = config.integer("vocab_size");
  model.hidden = config.integer("hidden_size");
  model.norm_epsilon = config.number_or("rms_norm_eps", default_epsilon, ConfigReader::Sign::positive, 1);
  model.tied_embeddings = config.flag_or("tie_word_embeddings", false);
  model.init_std = config.number_or("initializer_range", 0.02, ConfigReader::Sign::not_negative);
  model.max_positions = config.integer_or("max_position_embeddings", 0);
  return model;
}

std::int64_t read_layers(const ConfigReader& config) { return config.integer("num_hidden_layers", 1, 10'000); }

AttentionSpec read_attention(const ConfigReader& config, double default_theta, double default_fraction) {
  AttentionSpec attention;
  const std::int64_t hidden = config.integer("hidden_size");
  attention.heads = config.integer("num_attention_heads");
  attention.kv_heads = config.integer_or("num_key_value_heads", attention.heads);
  if (attention.heads % attention.kv_heads != 0) {
    config.refuse("num_key_value_heads", fmt::format("it must divide num_attention_heads, {}", attention.heads));
  }
  if (config.has("head_dim")) {
    attention.head_dim = config.integer("head_dim");
  } else if (hidden % attention.heads == 0) {
    attention.head_dim = hidden / attention.heads;
  } else {
    config.refuse("num_attention_heads", fmt::format("without 'head_dim' it must divide hidden_size, {}", hidden));
  }
  if (attention.head_dim % 2 != 0) {
    config.refuse("head_dim", fmt::format("heads of {} elements cannot be rotated in pairs", attention.head_dim));
  }
  attention.qkv_bias = attention.output_bias = config.flag_or("attention_bias", false);
  attention.rope = read_rope(config, default_theta, default_fraction);
  return attention;
}

ActivationSpec read_gated_activation(const ConfigReader& config) {
  const std::string name = config.text_or("hidden_act", "silu");
  if (name != "silu" && name != "swish") {
    config.refuse("hidden_act", "Weft supports gated MLPs of this family only with \"silu\"");
  }
  return {ActivationKind::swiglu};
}

ExpertsSpec read_experts(const ConfigReader& config, const std::string& ffn_key, bool normalise) {
  ExpertsSpec experts;
  constexpr std::int64_t most = ConfigReader::max_experts;
  const bool local = config.has("num_local_experts");
  experts.experts = config.integer(local ? "num_local_experts" : "num_experts", 1, most);
  if (local && config.has("num_experts") && config.integer("num_experts", 0, most) != experts.experts) {
    config.refuse("num_experts", fmt::format("num_local_experts is {}", experts.experts));
  }
  experts.ffn = config.integer(ffn_key);
  experts.activation = read_gated_activation(config);
  experts.router.score = RouterSpec::Score::softmax;
  experts.router.choose_first = false;
  experts.router.normalise = normalise;
  experts.router.k = config.integer("num_experts_per_tok");
  if (experts.router.k > experts.experts) {
    config.refuse("num_experts_per_tok", fmt::format("there are {} experts", experts.experts));
  }
  // Hugging Face adds the balancing loss only when it is told to return the router's logits.
  if (config.flag_or("output_router_logits", false) && config.number_or("router_aux_loss_coef", 0.001) != 0) {
    config.refuse("output_router_logits",
                  "it adds a balancing loss (router_aux_loss_coef), which Weft does not support; set it to false");
  }
  return experts;
}

}  // namespace weft
